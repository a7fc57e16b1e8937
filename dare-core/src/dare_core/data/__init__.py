"""Rows from local files, and how they become prompts, demonstrations and pairs."""
