"""TraceRL (Wang et al. 2025, arXiv:2509.06949).

Clipped policy gradient along the sampled trace, with `likelihood.merge_steps` merging consecutive steps (the paper's
shrink). With the views v of a replay, their tokens U_v, and the KL against the policy that sampled::

    masked models   L = mean_v [ mean_{j in U_v} C(r_vj, A) + beta sum_{j in U_v} k3(l_vj - l_old,vj) ]
    block models    L = mean_v [ sum_{j in U_v} ( C(r_vj, A) + beta k3(l_vj - l_old,vj) ) ] / R
    A_i = (R_i - mean_group R) / (population std_group R),   0 where the std is 0

with R the response length and log-ratios of block models bounded by 10.

With a value model V, trained beside the policy on the same views, A_i becomes the reward at the row's last trace step,
and each token has an advantage A_vj and a return R_vj along the trace (:mod:`dare_core.objectives.gae`). The value loss
has the policy loss's reduction::

    max((V_vj - R_vj)^2, (V'_vj - R_vj)^2) / 2,   V' = V_old + clip(V - V_old, -e, e)

Left open by the paper, chosen as in the
authors' code: groups whose share of correct answers lies outside [0.2, 0.8] are left out, answers that reach the length
limit count as wrong, and no padding token is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dare_algos_grpo.config import TraceRlSection
from dare_algos_grpo.policy import ClippedPolicy
from dare_algos_grpo.transitions import Transitions
from dare_core.objectives.gae import clipped_value_loss, trace_advantages
from dare_core.objectives.reductions import masked_mean, sequence_mean_token_sum, step_mean
from dare_core.spec.sections import ValueModelSection
from dare_core.types import (
    Advantages,
    BatchInputs,
    Estimate,
    LossInputs,
    LossOutput,
    Metric,
    Rollout,
    ValueInputs,
    Verdict,
    VerdictStatus,
)


class TraceRl(ClippedPolicy):
    """TraceRL, with a value model or without. Views are the recorded steps, the same for all inner updates."""

    config: TraceRlSection

    @property
    def value_model(self) -> ValueModelSection | None:
        """As the section says."""
        return self.config.value_model

    @property
    def uses_reference(self) -> bool:
        """Only with a KL term to the reference policy."""
        return self.config.kl_to == "reference" and self.config.kl_weight > 0

    def advantages(self, rollout: Rollout, verdicts: Sequence[Verdict]) -> Advantages:
        """Group-relative advantages [B]; with ``fail_overlong`` an answer without an end token has reward 0."""
        if self.config.fail_overlong:
            verdicts = [
                replace(verdict, score=0.0, status=VerdictStatus.WRONG)
                if finish == "length" and verdict.score is not None
                else verdict
                for verdict, finish in zip(verdicts, rollout.finish, strict=True)
            ]
        return super().advantages(rollout, verdicts)

    def anchor(self, inputs: LossInputs) -> Estimate | None:
        """The old policy's estimate, or the reference policy's."""
        return inputs.old if self.config.kl_to == "old" else inputs.reference

    def token_advantages(self, inputs: LossInputs, advantage: Tensor, trained: Tensor) -> Tensor:
        """[N,1] of rows, or [N,L] along the trace by the value model's values."""
        if inputs.values is None:
            return super().token_advantages(inputs, advantage, trained)
        return self._along_trace(inputs, inputs.values, trained)[0]

    def value_loss(self, inputs: ValueInputs) -> LossOutput:
        """The value loss above; rows without a usable verdict carry none and enter no divisor.

        Raises:
            TypeError: there are no advantages, or no value model.
        """
        options = self.config.value_model
        if options is None:
            raise TypeError("this TraceRL has no value model")
        row = inputs.views.row
        usable = self.line_advantages(inputs, row)[1]
        trained = self.trained(inputs)[row] & usable[:, None] & inputs.views.scored
        returns = self._along_trace(inputs, inputs.old, trained)[1]
        loss = clipped_value_loss(inputs.live, inputs.old, returns, options.clip_range)
        error = (inputs.live.detach() - returns) ** 2
        metrics = {
            "mean": Metric(*masked_mean(inputs.live, trained)),
            "return": Metric(*masked_mean(returns, trained)),
            "squared_error": Metric(*masked_mean(error, trained)),
        }
        return LossOutput(loss=self.reduce(loss, trained, row, inputs), metrics=metrics)

    def _along_trace(self, inputs: BatchInputs, values: Tensor, trained: Tensor) -> tuple[Tensor, Tensor]:
        """(advantages, returns) [N,L] of trained tokens."""
        options, rows = self.config.value_model, torch.arange(len(inputs.rows), device=values.device)
        assert options is not None
        return trace_advantages(
            self.line_advantages(inputs, rows)[0],
            values.detach(),
            trained,
            Transitions.of(inputs.views).step,
            inputs.views.row,
            gamma=options.gamma,
            lam=options.lam,
        )

    def log_ratio_limit(self, inputs: LossInputs) -> float | None:
        """Only in block layouts."""
        return self.config.block_log_ratio_limit if inputs.views.layout.kind == "block" else None

    def reduce(self, token_loss: Tensor, trained: Tensor, row: Tensor, inputs: BatchInputs) -> Tensor:
        """Mean over views of the mean over their tokens, or of their sum over the response length."""
        kind = self._kind(inputs)
        if kind == "view-mean":
            return step_mean(token_loss, trained, torch.arange(len(trained), device=trained.device))
        if kind == "view-length":
            return self._view_sums(token_loss, trained) / self.longest(inputs)
        return super().reduce(token_loss, trained, row, inputs)

    def reduce_kl(self, kl: Tensor, trained: Tensor, row: Tensor, inputs: BatchInputs) -> Tensor:
        """As the losses; under `view-mean` the sum over a view's tokens, then the mean over views."""
        return (
            self._view_sums(kl, trained)
            if self._kind(inputs) == "view-mean"
            else super().reduce_kl(kl, trained, row, inputs)
        )

    def _kind(self, inputs: BatchInputs) -> str:
        if self.config.reduction != "by-layout":
            return self.config.reduction
        return "view-mean" if inputs.views.layout.kind == "full" else "view-length"

    @staticmethod
    def _view_sums(values: Tensor, trained: Tensor) -> Tensor:
        return sequence_mean_token_sum(values, trained, counted=trained.any(dim=1))
