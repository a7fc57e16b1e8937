"""CJ-GRPO, consistency-trajectory GRPO (Yang et al. 2025, arXiv:2509.23924).

GRPO on the very transitions that were sampled: step k's action is the set U_k of tokens committed at step k,
scored in the state before it::

    L = 1/K sum_k [ sum_{i, j in U_k} ( C(r_kij, A_i) + beta k3(l_kij - l_ref,kij) ) / sum_i |U_k,i| ]
    A_i = R_i - mean_group R

Token mean over the whole batch within a step, then mean over steps: every step weighs the same whatever its
number of tokens. Left open by the paper, chosen as in the authors' code: tokens after the first end token are
trained. A step without trained tokens is left out of the mean (published code divides 0 by 0).

For block models the unified framework (arXiv:2604.04215) takes the mean within each transition (row, block, local
step), then over a row's transitions, then over rows: ``transition-mean``.
"""

from __future__ import annotations

from torch import Tensor

from dare_algos_grpo.policy import ClippedPolicy
from dare_algos_grpo.transitions import Transitions
from dare_core.objectives.reductions import row_sums, sequence_mean_token_sum, step_mean, transition_weights
from dare_core.types import BatchInputs


class CjGrpo(ClippedPolicy):
    """CJ-GRPO. Views are the recorded steps, the same for all inner updates."""

    def reduce(self, token_loss: Tensor, trained: Tensor, row: Tensor, inputs: BatchInputs) -> Tensor:
        """Means over steps or transitions, or a reduction over tokens."""
        if self.config.reduction == "step-mean":
            return step_mean(token_loss, trained, Transitions.of(inputs.views).step)
        if self.config.reduction == "transition-mean":
            rows = len(inputs.rows)
            weight = transition_weights(trained, Transitions.of(inputs.views).transition, row, rows)
            trains = row_sums(weight, trained, row, rows) > 0
            return sequence_mean_token_sum(token_loss * weight.to(token_loss.dtype), trained, row, trains, rows)
        return super().reduce(token_loss, trained, row, inputs)
