"""Published settings and scores, and how they are read."""
