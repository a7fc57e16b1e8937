"""EBPO: PPO on a composite block ELBO (LLaDA2.1 report, arXiv:2602.08676; as ported by arXiv:2604.04215).

With B the sum of a sequence's block ELBOs over views that each hide tokens in every block::

    r = exp(B - B_old)
    L = mean over rows of  max(-A r, -A clip(r, 1 - e_low, 1 + e_high))  +  beta k(B - B_ref)

The ratio is computed from logarithms, so that it cannot overflow on its clipped side. It is not divided by the
length: after the first update log ratios are of the order of nats, and nearly every row is clipped. ``ratio:
per-token`` divides B by the row's length in both terms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_elbo.config import EbpoSection
from dare_algos_elbo.sequence_policy import SequencePolicy
from dare_core.objectives.clips import ClippedSurrogate, clipped_log_surrogate


class Ebpo(SequencePolicy):
    """One ratio per row [B]."""

    config: EbpoSection

    def divisor(self, length: Tensor) -> Tensor:
        """1, or the row's length."""
        return length.to(torch.float64) if self.config.ratio == "per-token" else torch.ones_like(length).double()

    def surrogate(self, difference: Tensor, advantage: Tensor) -> ClippedSurrogate:
        """Of log ratios."""
        return clipped_log_surrogate(difference, advantage, self.config.clip_range, self.config.clip_high)

    def divergence(self, difference: Tensor, divisor: Tensor) -> Tensor:
        """On the same scale as the ratio."""
        return super().divergence(difference / divisor, divisor)
