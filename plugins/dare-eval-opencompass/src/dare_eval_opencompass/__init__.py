"""OpenCompass for dare: it makes prompts and scores in its own environment, our decoder answers."""
