"""Approximate caches for masked diffusion models (Fast-dLLM)."""
