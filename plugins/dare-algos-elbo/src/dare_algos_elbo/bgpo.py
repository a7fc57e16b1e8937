"""Boundary-guided policy optimisation (Lin et al. 2025, arXiv:2510.11683).

The ratio objective A exp(mean_m d_m), d_m = (B_m - B_m,old) / N over M draws, needs all draws at once. Its lower bound

    r_m = 1 + d_m  if A > 0,   exp(d_m)  otherwise
    L   = (1/M) sum_m agg( max(-A r_m, -A clip(r_m, 1 - e_low, 1 + e_high)), and at most -A c where A < 0 )

is a sum over draws, equal in value and gradient at d = 0. N is the row's own length and all divisors are those of the
whole batch. Published code computes 1 + d as exp(log(1 + d)), NaN below d = -1; here it is 1 + d.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from dare_algos_elbo.config import BgpoSection
from dare_algos_elbo.sequence_policy import SequencePolicy
from dare_core.objectives.clips import ClippedSurrogate, clipped_surrogate
from dare_core.objectives.kl import KL_FORMS
from dare_core.objectives.ratios import linear_ratio
from dare_core.types import LossInputs
from dare_core.types.estimate import EstimateShape


class Bgpo(SequencePolicy):
    """One clipped surrogate per draw [N]."""

    config: BgpoSection
    per: ClassVar[EstimateShape] = "view"

    def divisor(self, length: Tensor) -> Tensor:
        """The row's own length, or ``length_divisor``."""
        fixed = self.config.length_divisor
        return length.to(torch.float64) if fixed is None else torch.full_like(length, fixed, dtype=torch.float64)

    def surrogate(self, difference: Tensor, advantage: Tensor) -> ClippedSurrogate:
        """Of linear ratios, with the dual clip."""
        c = self.config
        return clipped_surrogate(linear_ratio(difference, advantage), advantage, c.clip_range, c.clip_high, c.dual_clip)

    def divergence(self, difference: Tensor, divisor: Tensor) -> Tensor:
        """Per draw, on differences per token."""
        return KL_FORMS[self.config.kl_form](difference / divisor)

    def reduce(self, entries: Tensor, counted: Tensor, length: Tensor, inputs: LossInputs) -> Tensor:
        """Every entry stands at each token of its row; the mean over draws of the chosen token reduction."""
        kind = self.config.reduction
        if kind == "sequence-mean-token-mean":
            return super().reduce(entries, counted, length, inputs)
        total = torch.where(counted, entries * length, 0.0).sum()
        if kind == "token-mean":
            return total / (length * counted).sum().clamp(min=1)
        if kind == "sequence-mean-token-sum":
            return total / counted.sum().clamp(min=1)
        return total / (length.amax() * len(inputs.views) / len(inputs.rows))
