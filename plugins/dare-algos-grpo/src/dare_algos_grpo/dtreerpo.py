"""d-TreeRPO (Pan et al. 2025, arXiv:2512.09675).

Denoising branches at a few steps. Leaves are judged, values propagate upwards, and siblings are compared; what is
trained are the segments from a canvas to the next, scored by one forward on the earlier one. With U_s the tokens of
segment s that the parent masks, up to the child's first end token::

    V(leaf) = R,  V(node) = mean of children,  A(s) = V(s) - mean of the siblings' V
    L  = mean_s [ mean_{j in U_s} ( C(r_sj, A_s) + beta k3(l_sj - l_ref,sj) ) ] + lambda SD
    SD = mean over (parent, j) of sum_v q_j(v) ( log(q_j(v) + 1e-8) - log p(v | parent) )

q_j weighs the tokens that the good siblings (A > 0) put at j by softmax(A / tau). Since their log-probabilities are the
segments' own scores, SD costs no forward. With f the share of ``distill_steps`` done::

    lambda = lambda_max (e^(gamma f) - 1) / (e^gamma - 1),   tau = tau_max (1 - f)^b

Left open by the paper, chosen as in the authors' code: a node without siblings has baseline 0; SD only where there
are at least two siblings and a good one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dare_algos_grpo.config import DTreeRpoSection
from dare_algos_grpo.estimators.snapshots import recorded_snapshots
from dare_algos_grpo.snapshot_policy import SnapshotPolicy
from dare_core.interfaces import Separable
from dare_core.objectives.advantages import group_relative, group_softmax, kept_groups, score_metrics, verdict_scores
from dare_core.objectives.reductions import step_mean
from dare_core.objectives.trees import node_values, sibling_groups
from dare_core.types import (
    Advantages,
    BatchInputs,
    LossInputs,
    LossOutput,
    Metric,
    Progress,
    Rollout,
    Snapshots,
    TreeShape,
    Verdict,
)

#: keeps the logarithm of the sibling distribution finite
_EPS = 1e-8
#: smallest temperature of the siblings' weights, where the schedule's own is 0
_COLDEST = 1e-6


class DTreeRpo(SnapshotPolicy):
    """d-TreeRPO. Advantages [S] belong to segments."""

    separable_by: ClassVar[Separable | None] = "group"
    config: DTreeRpoSection

    @property
    def tree(self) -> TreeShape:
        """As the section says."""
        return self.config.tree

    def advantages(self, rollout: Rollout, verdicts: Sequence[Verdict]) -> Advantages:
        """Advantages [S] of every segment; one without a judged leaf below is not usable.

        Raises:
            TypeError: the rollout does not branch.
        """
        snapshots = recorded_snapshots(rollout)
        parent, siblings = tree_of(rollout, snapshots)
        scores, usable = (x.to(rollout.group.device) for x in verdict_scores(verdicts))
        c = self.config
        kept = kept_groups(scores, rollout.group, usable, mean_range=c.mean_reward_range, drop_flat=c.drop_flat_groups)
        value = node_values(torch.where(kept, scores, torch.nan)[snapshots.row], parent)
        judged = torch.isfinite(value)
        advantage = group_relative(
            value, siblings, judged, baseline=c.baseline, scale=c.scale, eps=c.scale_eps, single=c.lone_row
        )
        return Advantages(value=advantage, usable=judged, statistics=score_metrics(scores, rollout.group, usable))

    def reduce(self, token_loss: Tensor, trained: Tensor, row: Tensor, inputs: BatchInputs) -> Tensor:
        """Token mean per segment, then mean over segments."""
        return step_mean(token_loss, trained, torch.arange(len(trained), device=trained.device))

    def loss(self, inputs: LossInputs) -> LossOutput:
        """See the base, with self-distillation."""
        out = super().loss(inputs)
        schedule = Distillation.at(self.config, inputs.progress)
        if schedule.weight == 0:
            return out
        term, cells = self.self_distillation(inputs, schedule.temperature)
        metrics = {**out.metrics, "self_distillation": Metric(float(term.detach()) * cells, cells)}
        return LossOutput(loss=out.loss + schedule.weight * term, metrics=metrics)

    def self_distillation(self, inputs: LossInputs, temperature: float) -> tuple[Tensor, float]:
        """(SD, number of (parent, position) pairs it is a mean over)."""
        advantage, usable = self.line_advantages(inputs, inputs.views.row)
        snapshots = recorded_snapshots(inputs.rows)
        siblings = tree_of(inputs.rows, snapshots)[1][self.snapshots_of(inputs)]
        several = torch.bincount(siblings, weights=usable.to(torch.float64))[siblings] >= 2
        good = usable & several & (advantage > 0)
        weight = group_softmax(advantage.to(torch.float64) / temperature, siblings, good)
        active = inputs.live.mask & good[:, None]
        place = torch.arange(active.shape[1], device=active.device)
        cell = (siblings[:, None] * active.shape[1] + place)[active]
        cells, cell_index = torch.unique(cell, return_inverse=True)
        share = weight[:, None].expand_as(active)[active]
        share = (
            share
            / torch.zeros(len(cells), dtype=share.dtype, device=share.device).index_add(0, cell_index, share)[
                cell_index
            ]
        )
        token = inputs.views.targets[active]
        _, choice = torch.unique(cell * (int(token.max()) + 1 if len(token) else 1) + token, return_inverse=True)
        of_token = torch.zeros(len(share), dtype=share.dtype, device=share.device).index_add(0, choice, share)[choice]
        logp = inputs.live.value[active]
        total = (share.to(logp.dtype) * ((of_token + _EPS).log().to(logp.dtype) - logp)).sum()
        return total / max(1, len(cells)), float(len(cells))


@dataclass(frozen=True)
class Distillation:
    """How strongly siblings teach at some point of the run.

    Attributes:
        weight: lambda.
        temperature: tau.
    """

    weight: float
    temperature: float

    @classmethod
    def at(cls, section: DTreeRpoSection, progress: Progress) -> Distillation:
        """By the optimizer steps that were done before."""
        done = progress.step * progress.inner_total + progress.inner
        share = min(1.0, done / section.distill_steps)
        growth = math.expm1(section.distill_growth * share) / math.expm1(section.distill_growth)
        cold = section.distill_temperature * (1 - share) ** section.distill_cooling
        return cls(weight=section.distill_weight * growth, temperature=max(cold, _COLDEST))


def tree_of(rows: Rollout | object, snapshots: Snapshots) -> tuple[Tensor, Tensor]:
    """(parent [S], siblings [S]) of a rollout's segments.

    Raises:
        TypeError: the rollout does not branch.
    """
    if snapshots.parent is None or not isinstance(rows, Rollout):
        raise TypeError("d-TreeRPO needs rollouts that branch, whose snapshots are segments of trees")
    return snapshots.parent, sibling_groups(snapshots.parent, rows.group[snapshots.row])
