"""The LLaDA family."""
