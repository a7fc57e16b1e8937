"""The LLaDA2 family."""
