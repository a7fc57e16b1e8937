"""Policy-gradient algorithms: d1, Coupled-GRPO, CJ-GRPO."""
