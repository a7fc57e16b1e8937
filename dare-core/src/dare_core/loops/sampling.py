"""A training step's batch: rollouts, verdicts and advantages, refilled where groups teach nothing.

Refilling (dynamic sampling, Yu et al. 2025, DAPO, arXiv:2503.14476): groups that the algorithm leaves out of its loss
are replaced by responses to further prompts, in at most ``refill_rounds`` rounds. A round asks for as many prompts as
groups are missing, in an order that follows from seed and step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.data.batches import refill_order
from dare_core.diffusion.joining import joined, rows_of
from dare_core.loops.job import OnlineJob
from dare_core.loops.signals import check_verdicts, rollout_gap, warn_of_collapse
from dare_core.types import Advantages, Prompt, Rollout, Verdict


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """What a step sampled, and what of it is trained on.

    Attributes:
        prompts: of every row that was sampled.
        rollout: every row that was sampled.
        verdicts: of every row that was sampled.
        batch: rows to train on, whole groups.
        advantages: of the batch.
        kept: [B] bool which sampled rows are the batch.
        metrics: ``rollout/logp_gap_*``, and where batches may be refilled ``rollout/rounds`` and
            ``rollout/left_out_groups``.
    """

    prompts: Sequence[Prompt]
    rollout: Rollout
    verdicts: Sequence[Verdict]
    batch: Rollout
    advantages: Advantages
    kept: Tensor
    metrics: Mapping[str, float]

    def row_advantages(self) -> list[float | None]:
        """Of every sampled row its advantage; None where it is not trained on or has none of its own."""
        values: list[float | None] = [None] * len(self.rollout)
        if len(self.advantages.value) == len(self.batch):
            rows = self.kept.nonzero()[:, 0].tolist()
            for row, value in zip(rows, self.advantages.value.tolist(), strict=True):
                values[row] = value
        return values


@dataclass(frozen=True, kw_only=True)
class _Round:
    """Rows of some prompts: ``prompts`` of each, their ``verdicts``, and ``teaches`` [B] bool."""

    prompts: list[Prompt]
    rollout: Rollout
    verdicts: list[Verdict]
    teaches: Tensor
    gap: Mapping[str, float]

    def joined(self, other: _Round, pad_id: int) -> _Round:
        """Both, this one first."""
        return _Round(
            prompts=[*self.prompts, *other.prompts],
            rollout=joined([self.rollout, other.rollout], pad_id),
            verdicts=[*self.verdicts, *other.verdicts],
            teaches=torch.cat([self.teaches, other.teaches]),
            gap=self.gap,
        )


def sample(job: OnlineJob, step: int) -> Sampled:
    """The batch of a training step.

    Raises:
        UserError: a prompt does not fit the model.
        DareError: the reward failed on more rows than the run allows.
    """
    rounds = job.learner.algorithm.refill_rounds
    wanted = job.prompts_of(step)
    found = _round(job, step, wanted)
    first = len(found.rollout)
    done = 1
    spare = _spare_prompts(job, step, wanted) if rounds else []
    while done <= rounds and spare and (missing := len(wanted) - _groups(found.rollout, found.teaches)) > 0:
        found = found.joined(_round(job, step, spare[:missing]), job.learner.facts.pad_id)
        spare, done = spare[missing:], done + 1
    check_verdicts(found.verdicts, found.rollout, step, job.max_error_share)
    left_out = float(_groups(found.rollout, ~found.teaches))
    counts = {"rollout/rounds": float(done), "rollout/left_out_groups": left_out} if rounds else {}
    # Without refilling, or where nothing teaches, the first round is the batch, whatever of it carries a loss.
    kept = found.teaches if rounds and bool(found.teaches.any()) else torch.arange(len(found.rollout)) < first
    batch = found.rollout if bool(kept.all()) else rows_of(found.rollout, kept)
    verdicts = [verdict for verdict, stays in zip(found.verdicts, kept.tolist(), strict=True) if stays]
    return Sampled(
        prompts=found.prompts,
        rollout=found.rollout,
        verdicts=found.verdicts,
        batch=batch,
        advantages=job.learner.algorithm.advantages(batch, verdicts),
        kept=kept,
        metrics={**found.gap, **counts},
    )


def _round(job: OnlineJob, step: int, prompts: Sequence[Prompt]) -> _Round:
    with job.session.timed("rollout"):
        rollout = job.backend.generate(job.request(prompts, step))
        gap = rollout_gap(job.learner, rollout, job.settings, step)
    repeated = [prompt for prompt in prompts for _ in range(job.samples)]
    with job.session.timed("reward"):
        verdicts = job.judged(repeated, rollout)
    warn_of_collapse(rollout, job.settings)
    advantages = job.learner.algorithm.advantages(rollout, verdicts)
    return _Round(prompts=repeated, rollout=rollout, verdicts=verdicts, teaches=_teaching(rollout, advantages), gap=gap)


def _spare_prompts(job: OnlineJob, step: int, taken: Sequence[Prompt]) -> list[Prompt]:
    """Prompts that the step's batch does not hold, in the order to take them in."""
    indices = {prompt.index for prompt in taken}
    order = refill_order(len(job.prompts), job.learner.seed, step)
    return [job.prompts[i] for i in order if job.prompts[i].index not in indices]


def _teaching(rollout: Rollout, advantages: Advantages) -> Tensor:
    """[B] bool rows of groups with anything usable."""
    usable = advantages.usable.to(rollout.group.device)
    snapshots = None if rollout.trace is None else rollout.trace.snapshots
    group = rollout.group if len(usable) == len(rollout) or snapshots is None else rollout.group[snapshots.row]
    return torch.isin(rollout.group, group[usable])


def _groups(rollout: Rollout, rows: Tensor) -> int:
    return len(torch.unique(rollout.group[rows]))
