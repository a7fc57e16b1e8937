"""Likelihood-based algorithms: masked SFT."""
