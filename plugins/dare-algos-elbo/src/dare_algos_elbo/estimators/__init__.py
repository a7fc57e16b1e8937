"""Likelihood estimators of this package, one module each."""
