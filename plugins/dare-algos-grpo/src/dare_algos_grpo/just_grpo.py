"""JustGRPO (Ni et al. 2026, arXiv:2601.15165).

Policy gradient in left-to-right order: responses are sampled one token at a time, their log-probability is exact, and
one update per rollout makes the ratio 1::

    L   = sum_ij C(r_ij, A_i) / (R (n + eps)),   n = rows with A_i != 0,   R = response length
    A_i = (R_i - mean_group R) / (std_group R + 1e-4)

Left open by the paper, chosen as in the authors' code: every response token is trained, also after the first end
token; no reference policy; the clip range is given but inert. The authors count n per group on each device; here it
is the whole batch's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_grpo.config import JustGrpoSection
from dare_algos_grpo.policy import ClippedPolicy
from dare_core.objectives.reductions import fixed_length
from dare_core.types import BatchInputs


class JustGrpo(ClippedPolicy):
    """JustGRPO. Views are the response's positions, the same for all inner updates."""

    config: JustGrpoSection

    def reduce(self, token_loss: Tensor, trained: Tensor, row: Tensor, inputs: BatchInputs) -> Tensor:
        """Constant weight per token of rows that teach something, or a reduction over tokens."""
        if self.config.reduction != "informative-rows":
            return super().reduce(token_loss, trained, row, inputs)
        advantage, usable = self.line_advantages(inputs, torch.arange(len(inputs.rows), device=row.device))
        informative = ((advantage != 0) & usable).sum() + self.config.count_eps
        return fixed_length(token_loss, trained, self.longest(inputs), informative)
