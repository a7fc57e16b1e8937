"""DiffusionGemma for dare."""
