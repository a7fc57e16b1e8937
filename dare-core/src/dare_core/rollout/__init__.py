"""The native rollout backend."""
