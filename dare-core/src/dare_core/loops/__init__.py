"""The training loops and the two-pass update."""
