"""Likelihood-based algorithms: supervised, on preferences, on rewards; and the ELBO estimators they use."""
