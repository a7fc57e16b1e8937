"""ESPO: the sequence is the action (arXiv:2512.03759).

With B the coupled estimate of a sequence's ELBO and N one number of tokens for all rows::

    r = exp((B - B_old) / N)
    L = mean over rows of  max(-A r, -A clip(r, 1 - e, 1 + e))  +  beta k(B - B_ref) / N

The KL surrogate k (k2: d^2/2) takes the whole difference and is divided by N once. N is the generation length in the
authors' code, where every response has it; where responses end early it is the batch's longest unless given. With
e = 0 (their Countdown setting) a row has gradient only while its ratio lies on the pessimistic side of 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_elbo.config import EspoSection
from dare_algos_elbo.sequence_policy import SequencePolicy
from dare_core.objectives.clips import ClippedSurrogate, clipped_surrogate


class Espo(SequencePolicy):
    """One ratio per row [B]."""

    config: EspoSection

    def divisor(self, length: Tensor) -> Tensor:
        """The same for all rows."""
        fixed = float(length.amax()) if self.config.length_divisor is None else self.config.length_divisor
        return torch.full_like(length, fixed, dtype=torch.float64)

    def surrogate(self, difference: Tensor, advantage: Tensor) -> ClippedSurrogate:
        """Of the normalised sequence ratio."""
        return clipped_surrogate(difference.exp(), advantage, self.config.clip_range, self.config.clip_high)

    def divergence(self, difference: Tensor, divisor: Tensor) -> Tensor:
        """Of the whole difference, then per token."""
        return super().divergence(difference, divisor) / divisor
