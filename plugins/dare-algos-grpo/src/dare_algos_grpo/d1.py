"""d1, diffu-GRPO (Zhao et al. 2025, arXiv:2504.12216).

GRPO on the one-step estimate: all response tokens are scored at once from a fully hidden response, with part of
the prompt hidden anew at each inner update::

    L = sum_ij m_ij [ C(r_ij, A_i) + beta k3(l_ij - l_ref,ij) ] / sum_ij m_ij
    A_i = R_i - mean_group R,     m = tokens up to and including the first end token

Left open by the paper, chosen as in the authors' code: no division by the group's std, token mean over the whole
batch, response tokens after the first end token are scored but not trained.
"""

from __future__ import annotations

from dare_algos_grpo.policy import ClippedPolicy


class D1(ClippedPolicy):
    """diffu-GRPO."""

    @property
    def fresh_views(self) -> bool:
        """Each inner update hides other prompt tokens."""
        return True
