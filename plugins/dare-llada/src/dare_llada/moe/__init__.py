"""LLaDA-MoE, the family's mixture of experts."""
