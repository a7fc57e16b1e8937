"""Sandwiched policy gradient (Wang et al. 2025, arXiv:2510.09541).

Raise a lower estimate of the log-likelihood of rows with a positive advantage, and lower an upper one of the others::

    l_b = lower_b if A_b > 0, else  w upper_b + (1 - w) lower_b      (``negative: mix``; or upper, lower, 0)
    L   = - sum_b A_b l_b L_b / sum_b L_b

l is per token and L_b the length of the completion. A plain policy gradient: no ratio, no clip, no KL. Inner updates
draw views of their own and reuse the rollout without a correction, as the authors do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_elbo.config import SpgSection
from dare_algos_elbo.group_reward import GroupReward
from dare_core.types import LossInputs, LossOutput, Metric


class Spg(GroupReward):
    """The loss above, on lower and upper estimates per row [B]."""

    config: SpgSection

    @property
    def uses_old_policy(self) -> bool:
        """There is no ratio."""
        return False

    def chosen(self, lower: Tensor, upper: Tensor, advantage: Tensor) -> Tensor:
        """[B] the estimate of each row, by the sign of its advantage [B]."""
        c = self.config
        forms = {
            "mix": c.mix_weight * upper + (1 - c.mix_weight) * lower,
            "upper": upper,
            "lower": lower,
            "zero": torch.zeros_like(lower),
        }
        return torch.where(advantage > 0, lower, forms[c.negative])

    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss above; rows without a usable verdict carry none and enter no divisor.

        Raises:
            TypeError: the estimate is not per row or has no upper side, or there are no advantages.
        """
        live, advantages = self.given(inputs, "row")
        if live.upper is None:
            raise TypeError("Spg needs an upper estimate beside the lower one")
        counted, length = self.counted(inputs), inputs.rows.completion.sum(dim=1)
        value = self.chosen(live.value, live.upper, advantages.value)
        weighted = torch.where(counted, advantages.value * value * length, 0.0).sum()
        tokens = (length * counted).sum()
        shown = {"lower_per_token": live.value, "upper_per_token": live.upper, "gap": live.upper - live.value}
        metrics = {
            name: Metric(float(torch.where(counted, values.detach(), 0.0).sum()), float(counted.sum()))
            for name, values in shown.items()
        }
        return LossOutput(loss=-weighted / tokens.clamp(min=1), metrics=metrics)
