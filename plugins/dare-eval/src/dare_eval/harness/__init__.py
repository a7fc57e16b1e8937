"""lm-evaluation-harness on this framework's decoder and likelihoods. Needs ``pip install dare-eval[lm-eval]``."""
