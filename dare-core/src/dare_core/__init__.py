"""dare: one executor for post-training and evaluating diffusion language models."""
