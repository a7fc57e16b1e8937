"""What plugin authors test with: toy models, golden cases, fake distributions, a command runner."""
