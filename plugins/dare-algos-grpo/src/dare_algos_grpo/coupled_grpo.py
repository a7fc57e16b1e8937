"""Coupled-GRPO (Gong et al. 2025, DiffuCoder, arXiv:2506.20639).

GRPO on the coupled estimate (a complementary pair of views averaged with the fully hidden one) with a
leave-one-out baseline::

    L = sum_ij m_ij [ C(r_ij, A_i) + beta k3(l_ij - l_ref,ij) ] / max(sum_ij m_ij, 1)
    A_i = R_i - mean_{k != i} R_k

l is not a log-probability (its weights reach 5), so r spreads more than a likelihood ratio. Left open by the
paper, chosen as in the authors' code: the advantage is not divided by the group's std.
"""

from __future__ import annotations

from dare_algos_grpo.policy import ClippedPolicy


class CoupledGrpo(ClippedPolicy):
    """Coupled-GRPO."""

    @property
    def fresh_views(self) -> bool:
        """Each inner update draws its own pair."""
        return True
