"""Count-stratified estimate of the ELBO (LLaDA, Nie et al. 2025, arXiv:2502.09992, eq. 6 and appendix).

From one token to all n of them are hidden, with weight n / x. VRPO (arXiv:2505.19223) and BGPO (arXiv:2510.11683) use
it; all draws on different counts (n_t = n, n_y = 1) have the least variance, smaller ``set_size`` gives n_t = set_size.
"""

from __future__ import annotations

from dare_algos_elbo.estimators.config import CountStratifiedSection
from dare_algos_elbo.estimators.counts import CountEstimator


class CountStratified(CountEstimator):
    """Counts 1..n."""

    config: CountStratifiedSection
