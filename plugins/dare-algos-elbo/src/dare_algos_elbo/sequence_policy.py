"""What algorithms with one likelihood ratio per sequence share.

With B the estimate of a sequence (or of one of its draws), N a number of tokens, A the advantage::

    d = (B - B_old) / N,     L = clipped surrogate of r(d) and A  +  beta KL(B - B_ref)

An algorithm says what N is, how the ratio comes from d, how it is clipped, and how the entries become one number.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from dare_algos_elbo.config import SequencePolicySection
from dare_algos_elbo.estimators.draws import target_lengths
from dare_algos_elbo.group_reward import GroupReward
from dare_core.interfaces import Separable
from dare_core.objectives.clips import ClippedSurrogate
from dare_core.objectives.kl import KL_FORMS
from dare_core.types import LossInputs, LossOutput, Metric
from dare_core.types.estimate import EstimateShape


class SequencePolicy(GroupReward):
    """Clipped ratios on estimates per row [B] or per view [N]."""

    separable_by: ClassVar[Separable | None] = "line"
    config: SequencePolicySection
    per: ClassVar[EstimateShape] = "row"

    @property
    def uses_reference(self) -> bool:
        """Only with a KL term."""
        return self.config.kl_weight > 0

    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss above; rows without a usable verdict carry none and enter no divisor.

        Raises:
            TypeError: the estimate has another shape, or there are no advantages.
        """
        live, advantages = self.given(inputs, self.per)
        row = inputs.views.row if self.per == "view" else torch.arange(len(inputs.rows), device=live.value.device)
        length = target_lengths(inputs.views, inputs.rows).clamp(min=1)
        counted, divisor = self.counted(inputs, row), self.divisor(length)[row]
        # What does not count may overflow, but not through a ratio.
        difference = torch.where(counted, (live.value - inputs.old.value.detach()) / divisor, 0.0)
        advantage = advantages.value[row].to(difference.dtype)
        surrogate = self.surrogate(difference, advantage)
        entries = surrogate.loss
        metrics = _metrics(surrogate, difference, advantage, counted)
        if inputs.reference is not None and self.config.kl_weight > 0:
            kl = self.divergence(torch.where(counted, live.value - inputs.reference.value.detach(), 0.0), divisor)
            entries = entries + self.config.kl_weight * kl
            metrics["kl"] = _mean(kl, counted)
        return LossOutput(loss=self.reduce(entries, counted, length[row], inputs), metrics=metrics)

    @abstractmethod
    def divisor(self, length: Tensor) -> Tensor:
        """[B] tokens N that estimates are divided by, from the rows' lengths [B]."""

    @abstractmethod
    def surrogate(self, difference: Tensor, advantage: Tensor) -> ClippedSurrogate:
        """The clipped loss of differences d and advantages, entry by entry."""

    def divergence(self, difference: Tensor, divisor: Tensor) -> Tensor:
        """KL surrogate of differences to the reference, in nats of the whole sequence."""
        return KL_FORMS[self.config.kl_form](difference)

    def reduce(self, entries: Tensor, counted: Tensor, length: Tensor, inputs: LossInputs) -> Tensor:
        """One number from entries [B] or [N]: the mean over those that count."""
        return torch.where(counted, entries, 0.0).sum() / counted.sum().clamp(min=1)


def _mean(values: Tensor, counted: Tensor) -> Metric:
    return Metric(float(torch.where(counted, values.detach(), 0.0).sum()), float(counted.sum()))


def _metrics(surrogate: ClippedSurrogate, difference: Tensor, advantage: Tensor, counted: Tensor) -> dict[str, Metric]:
    shown = {
        "clip_fraction": surrogate.clipped,
        "clip_fraction_low": surrogate.clipped & (advantage < 0),
        "outside_fraction": surrogate.outside,
        "dual_clip_fraction": surrogate.capped,
        "log_ratio": difference,
        "log_ratio_abs": difference.abs(),
    }
    return {name: _mean(values.to(difference.dtype), counted) for name, values in shown.items()}
