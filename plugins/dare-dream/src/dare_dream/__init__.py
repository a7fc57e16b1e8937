"""The Dream family."""
