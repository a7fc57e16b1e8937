"""MDPO, masked diffusion policy optimisation (He et al. 2025, arXiv:2508.13148).

Train on the model's own denoising steps: at each step t the decoder proposes a token everywhere (a guess), each guess
is judged, and the steps that matter most are trained::

    v_t = (r_t - r_(t-1)) + 1 + mean(r_(t+1) ...)
    A_t = (v_t - mean_group v_t) / (std_group v_t + 1e-4)                     per step, r_-1 = 0
    L_t = sum m c [ lambda C(r_tj, A_t) + beta k2(d_tj) ] / (sum m + 1e-4)    m: hidden before step t
    lambda = R / (number of m in the row + 1e-4),   c = probability of the proposal when it was made

Left open by the paper, chosen as in the authors' code: the k steps with the largest sum of |A_t| over a group, all
hidden positions and not only those committed at t, the KL term not scaled by lambda, log-probabilities at the sampling
temperature. The authors accumulate the chosen steps into one optimizer step; so here, as their mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dare_algos_grpo.config import MdpoSection
from dare_algos_grpo.estimators.snapshots import recorded_snapshots
from dare_algos_grpo.snapshot_policy import SnapshotPolicy, StepTable
from dare_core.objectives.advantages import group_relative, kept_groups, score_metrics, verdict_scores
from dare_core.objectives.reductions import step_mean
from dare_core.objectives.steps import most_important, step_values
from dare_core.types import Advantages, BatchInputs, Rollout, Rows, Snapshots, Verdict


class Mdpo(SnapshotPolicy):
    """MDPO. Advantages [S] belong to snapshots."""

    config: MdpoSection

    def advantages(self, rollout: Rollout, verdicts: Sequence[Verdict]) -> Advantages:
        """Advantages [S] of every recorded forward; a row any of whose guesses was not judged is not usable.

        Raises:
            ValueError: a verdict lacks the scores of its row's guesses.
        """
        snapshots, group = recorded_snapshots(rollout), rollout.group
        table = StepTable.of(snapshots, len(rollout))
        rewards = torch.zeros(table.present.numel(), dtype=torch.float32, device=group.device)
        rewards = rewards.index_copy(0, table.place, prefix_rewards(verdicts, snapshots).to(group.device))
        rewards = rewards.view(table.present.shape)
        scores, usable = (x.to(group.device) for x in verdict_scores(verdicts))
        usable &= torch.isfinite(rewards).all(dim=1)
        c = self.config
        kept = kept_groups(scores, group, usable, mean_range=c.mean_reward_range, drop_flat=c.drop_flat_groups)
        mine = kept[snapshots.row]
        value = group_relative(
            step_values(rewards, table.present).flatten()[table.place],
            step_key(group[snapshots.row], snapshots.step),
            mine,
            baseline=c.baseline,
            scale=c.scale,
            eps=c.scale_eps,
            single=c.lone_row,
        )
        statistics = score_metrics(scores, group, usable)
        statistics["guess_reward_mean"] = float(rewards.flatten()[table.place][mine].mean()) if mine.any() else 0.0
        return Advantages(value=value, usable=mine, statistics=statistics)

    def select(self, rollout: Rollout, advantages: Advantages) -> Tensor | None:
        """[S] snapshots of the most important steps, step after step in order of importance."""
        snapshots = recorded_snapshots(rollout)
        key = self._unit(rollout, snapshots.row, snapshots.step)
        groups = rollout.group[snapshots.row] if self.config.select_per == "group" else torch.zeros_like(key)
        size = advantages.value.abs() * advantages.usable
        chosen = [
            (key == wanted).nonzero()[:, 0]
            for group in torch.unique(groups)
            for wanted in most_important(size[groups == group], key[groups == group], self.config.train_steps)
        ]
        return torch.cat(chosen)

    def reduce(self, token_loss: Tensor, trained: Tensor, row: Tensor, inputs: BatchInputs) -> Tensor:
        """Confidence-weighted token mean per step, rows scaled to their full length; then the mean over steps."""
        return self._per_step(token_loss * self.length_scale(inputs)[:, None], trained, inputs)

    def reduce_kl(self, kl: Tensor, trained: Tensor, row: Tensor, inputs: BatchInputs) -> Tensor:
        """The same without the scale."""
        return self._per_step(kl, trained, inputs)

    def length_scale(self, inputs: BatchInputs) -> Tensor:
        """[N] lambda: response positions over positions that the step's input hides."""
        hidden = inputs.views.scored.sum(dim=1).clamp(min=1) + self.config.count_eps
        scale: Tensor = inputs.rows.response.sum(dim=1)[inputs.views.row] / hidden
        return scale

    def _per_step(self, values: Tensor, trained: Tensor, inputs: BatchInputs) -> Tensor:
        weighted = values * inputs.views.weight.to(values.dtype)
        unit = self._unit(inputs.rows, inputs.views.row, inputs.views.draw)
        return step_mean(weighted, trained, unit, self.config.count_eps)

    def _unit(self, rows: Rows, row: Tensor, step: Tensor) -> Tensor:
        """[N] int64: what a mean is taken over, a group's or the batch's step."""
        return step_key(rows.group[row], step) if self.config.select_per == "group" else step


def step_key(group: Tensor, step: Tensor) -> Tensor:
    """[N] int64, the same for lines of one group and step, in order of groups, then steps."""
    steps = int(step.max()) + 1 if len(step) else 1
    index: Tensor = torch.unique(group, return_inverse=True)[1]
    return index * steps + step


def prefix_rewards(verdicts: Sequence[Verdict], snapshots: Snapshots) -> Tensor:
    """[S] float32 rewards of the guesses, in the order of the snapshots; NaN where the reward failed.

    Raises:
        ValueError: a verdict has not one score per recorded forward of its row.
    """
    counts = torch.bincount(snapshots.row, minlength=len(verdicts)).tolist()
    found: list[float] = []
    for row, (verdict, count) in enumerate(zip(verdicts, counts, strict=True)):
        scores = verdict.prefix_scores or ()
        if len(scores) != count:
            raise ValueError(f"row {row} has {count} recorded forwards and {len(scores)} scores of their guesses")
        found += scores
    return torch.tensor(found, dtype=torch.float32)
