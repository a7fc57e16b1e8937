"""wd1, weighted policy optimisation (Tang et al. 2025, arXiv:2507.08838).

Weighted likelihood instead of a ratio: only the live policy is scored, no old and no reference policy. With L_i the
one-step log-likelihood of response i, summed over its trained tokens, and softmax over the group g::

    L = mean over groups of [ - sum_{i in g} softmax(A)_i L_i + w sum_{i in g} softmax(-A)_i L_i ]
    A_i = R_i - mean_group R

The first term attracts good responses, the second repels poor ones (w = 1; 0 leaves it out). With equal rewards the
two cancel exactly. Left open by the paper, chosen as in the authors' code: L_i is a sum, so longer completions weigh
more. The authors take the softmax over a device's batch, which holds one group.
"""

from __future__ import annotations

import torch

from dare_algos_grpo.config import Wd1Section
from dare_algos_grpo.policy import GroupPolicy
from dare_core.objectives.advantages import group_softmax
from dare_core.objectives.reductions import masked_mean, row_sums
from dare_core.types import LossInputs, LossOutput, Metric


class Wd1(GroupPolicy):
    """wd1."""

    config: Wd1Section

    @property
    def reference_share(self) -> float:
        """``reference_share`` of the section."""
        return self.config.reference_share

    @property
    def fresh_views(self) -> bool:
        """Each inner update hides other prompt tokens."""
        return True

    @property
    def uses_old_policy(self) -> bool:
        """There is no ratio."""
        return False

    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss above; groups without a usable row are left out of the mean.

        Raises:
            TypeError: the estimate is neither per token nor per view and token, or there are no advantages.
        """
        row = self.lines(inputs)
        advantage, usable = self.line_advantages(inputs, torch.arange(len(inputs.rows), device=row.device))
        group = inputs.rows.group
        trained = self.trained(inputs)[row] & usable[row][:, None] & inputs.live.mask
        weight = group_softmax(advantage, group, usable)
        weight = weight - self.config.repel_weight * group_softmax(-advantage, group, usable)
        likelihood = row_sums(inputs.live.value, trained, row, len(inputs.rows))
        loss = -(weight * likelihood).sum() / max(1, len(torch.unique(group[usable])))
        return LossOutput(loss=loss, metrics={"logp": Metric(*masked_mean(inputs.live.value, trained))})
