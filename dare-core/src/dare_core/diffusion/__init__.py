"""Pure functions of masked and block diffusion: corruption, schedules, selection, denoising, seeds."""
