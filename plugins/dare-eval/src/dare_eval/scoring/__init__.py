"""How a response becomes an answer and a verdict: published rules by name, and ours."""
