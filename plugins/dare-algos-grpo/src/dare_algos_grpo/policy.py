"""The loss that the algorithms of this package share: a clipped policy gradient on estimated log-likelihoods.

Per trained token j of row i, with r = exp(l - l_old), d = l - l_ref and the advantage A of the row::

    L_ij = max(-A_i r_ij, -A_i clip(r_ij, 1 - e_low, 1 + e_high)) + beta * KL(d_ij)

An algorithm is a choice of estimator (which views give l), of advantage, and of how L_ij becomes one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from dare_algos_grpo.config import ClippedPolicySection, GroupPolicySection
from dare_core.interfaces import Algorithm, Separable
from dare_core.objectives import reductions
from dare_core.objectives.advantages import rollout_advantages
from dare_core.objectives.clips import ClippedSurrogate, clipped_surrogate
from dare_core.objectives.kl import KL_FORMS, k3
from dare_core.objectives.ratios import log_ratio, token_ratio
from dare_core.types import Advantages, BatchInputs, Estimate, LossInputs, LossOutput, Metric, Rollout, Verdict


class GroupPolicy(Algorithm):
    """Base of the policy gradients: group-relative advantages, token [B,L] or view-token [N,L] estimates."""

    separable_by: ClassVar[Separable | None] = "line"
    config: GroupPolicySection

    @property
    def inner_updates(self) -> int:
        """``inner_updates`` of the section."""
        return self.config.inner_updates

    @property
    def refill_rounds(self) -> int:
        """``refill_rounds`` of the section."""
        return self.config.refill_rounds

    def advantages(self, rollout: Rollout, verdicts: Sequence[Verdict]) -> Advantages:
        """Group-relative advantages [B] as the section says."""
        c = self.config
        return rollout_advantages(
            rollout,
            verdicts,
            baseline=c.baseline,
            scale=c.scale,
            eps=c.scale_eps,
            single=c.lone_row,
            mean_range=c.mean_reward_range,
            drop_flat=c.drop_flat_groups,
        )

    def line_advantages(self, inputs: BatchInputs, row: Tensor) -> tuple[Tensor, Tensor]:
        """(advantage [N], usable [N] bool) of the estimate's lines, whose rows are ``row`` [N].

        Raises:
            TypeError: there are no advantages.
        """
        if inputs.advantages is None:
            raise TypeError(f"{type(self).__name__} needs advantages")
        return inputs.advantages.value[row], inputs.advantages.usable[row]

    def trained(self, inputs: BatchInputs) -> Tensor:
        """[B,L] bool tokens that are trained."""
        rows = inputs.rows
        return rows.completion if self.config.trained_tokens == "completion" else rows.response

    def lines(self, inputs: LossInputs) -> Tensor:
        """[N] int64 row of each line of the estimate.

        Raises:
            TypeError: the estimate is neither per token nor per view and token.
        """
        per = inputs.live.per
        if per == "token":
            return torch.arange(len(inputs.rows), device=inputs.live.value.device)
        if per == "view-token":
            return inputs.views.row
        raise TypeError(f"{type(self).__name__} needs an estimate per token or per view and token, not per {per}")


class ClippedPolicy(GroupPolicy):
    """Base of the clipped algorithms."""

    config: ClippedPolicySection

    @property
    def uses_reference(self) -> bool:
        """Only with a KL term."""
        return self.config.kl_weight > 0

    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss above; rows without a usable verdict carry none and enter no divisor.

        Raises:
            TypeError: the estimate is neither per token nor per view and token, or there are no advantages.
        """
        row = self.lines(inputs)
        advantage, usable = self.line_advantages(inputs, row)
        trained = self.trained(inputs)[row] & usable[:, None] & inputs.live.mask
        limit = self.log_ratio_limit(inputs)
        ratio = token_ratio(inputs.live.value, inputs.old.value.detach(), limit)
        weight = self.token_advantages(inputs, advantage, trained)
        surrogate = clipped_surrogate(
            ratio, weight, self.config.clip_range, self.config.clip_high, self.config.dual_clip
        )
        metrics = self._clip_metrics(inputs, surrogate, ratio, trained)
        loss = self.reduce(surrogate.loss, trained, row, inputs)
        anchor = self.anchor(inputs)
        if anchor is not None and self.config.kl_weight > 0:
            kl = KL_FORMS[self.config.kl_form](log_ratio(inputs.live.value, anchor.value.detach(), limit))
            loss = loss + self.config.kl_weight * self.reduce_kl(kl, trained, row, inputs)
            metrics["kl"] = Metric(*reductions.masked_mean(kl, trained))
        return LossOutput(loss=loss, metrics=metrics)

    def token_advantages(self, inputs: LossInputs, advantage: Tensor, trained: Tensor) -> Tensor:
        """[N,1] or [N,L] from the advantages [N] of the estimate's lines: by default the same for all their tokens."""
        return advantage[:, None]

    def log_ratio_limit(self, inputs: LossInputs) -> float | None:
        """Bound of log-ratios and log-differences, in nats; None = none."""
        return None

    def anchor(self, inputs: LossInputs) -> Estimate | None:
        """The estimate that the KL term keeps the live one near."""
        return inputs.reference

    def reduce_kl(self, kl: Tensor, trained: Tensor, row: Tensor, inputs: BatchInputs) -> Tensor:
        """One number from the KL surrogates [N,L]: by default as from the losses."""
        return self.reduce(kl, trained, row, inputs)

    def reduce(self, token_loss: Tensor, trained: Tensor, row: Tensor, inputs: BatchInputs) -> Tensor:
        """One number from the losses [N,L] at ``trained`` [N,L] entries of rows ``row`` [N]."""
        usable = inputs.advantages.usable if inputs.advantages is not None else None
        rows, kind = len(inputs.rows), self.config.reduction
        if kind == "sequence-mean-token-sum":
            return reductions.sequence_mean_token_sum(token_loss, trained, row, usable, rows)
        if kind == "sequence-mean-token-mean":
            return reductions.sequence_mean_token_mean(token_loss, trained, row, rows)
        if kind == "fixed-length":
            sequences = usable.sum() if usable is not None else rows
            return reductions.fixed_length(token_loss, trained, self.longest(inputs), sequences)
        return reductions.token_mean(token_loss, trained)

    def longest(self, inputs: BatchInputs) -> float:
        """Tokens per sequence that a fixed-length reduction divides by; rows without a verdict do not count."""
        if self.config.length_divisor is not None:
            return self.config.length_divisor
        length = inputs.rows.response.sum(dim=1)
        if inputs.advantages is not None:
            length = length * inputs.advantages.usable
        return float(length.amax().clamp(min=1))

    @staticmethod
    def _clip_metrics(
        inputs: LossInputs, surrogate: ClippedSurrogate, ratio: Tensor, trained: Tensor
    ) -> dict[str, Metric]:
        old = inputs.live.value.detach() - inputs.old.value.detach()
        shown = {
            "clip_fraction": surrogate.clipped,
            "outside_fraction": surrogate.outside,
            "dual_clip_fraction": surrogate.capped,
            "ratio": ratio,
            "kl_old": k3(old),
        }
        return {
            name: Metric(*reductions.masked_mean(values.to(ratio.dtype), trained)) for name, values in shown.items()
        }
