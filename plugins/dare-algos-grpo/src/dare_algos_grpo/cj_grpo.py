"""CJ-GRPO, consistency-trajectory GRPO (Yang et al. 2025, arXiv:2509.23924).

GRPO on the very transitions that were sampled: step k's action is the set U_k of tokens committed at step k,
scored in the state before it::

    L = 1/K sum_k [ sum_{i, j in U_k} ( C(r_kij, A_i) + beta k3(l_kij - l_ref,kij) ) / sum_i |U_k,i| ]
    A_i = R_i - mean_group R

Token mean over the whole batch within a step, then mean over steps: every step weighs the same whatever its
number of tokens. Left open by the paper, chosen as in the authors' code: tokens after the first end token are
trained. A step without trained tokens is left out of the mean (published code divides 0 by 0).
"""

from __future__ import annotations

from torch import Tensor

from dare_algos_grpo.policy import ClippedPolicy
from dare_core.objectives.reductions import step_mean
from dare_core.types import LossInputs


class CjGrpo(ClippedPolicy):
    """CJ-GRPO. Views are the recorded steps, the same for all inner updates."""

    def reduce(self, token_loss: Tensor, trained: Tensor, row: Tensor, inputs: LossInputs) -> Tensor:
        """Mean over denoising steps of the token mean within each, or a reduction over tokens."""
        if self.config.reduction == "step-mean":
            return step_mean(token_loss, trained, inputs.views.draw)
        return super().reduce(token_loss, trained, row, inputs)
