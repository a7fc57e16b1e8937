"""Rewards without task knowledge."""
