"""Guesses of single denoising forwards (MDPO, He et al. 2025, arXiv:2508.13148).

At a recorded forward the decoder saw a partly hidden response and proposed a token at every hidden position. One view
per chosen forward shows what it saw and scores what it proposed::

    l_tj = log p(g_tj | state t) at every position j hidden in state t,   weight = probability of the proposal then

Logits are divided by the temperature that sampled the guess. Without a choice all recorded forwards are planned.

Where rollouts branch, snapshots are segments of the tree (d-TreeRPO, Pan et al. 2025, arXiv:2512.09675): the view shows
the canvas at a branch and scores the tokens that the next canvas adds.
"""

from __future__ import annotations

import torch

from dare_algos_grpo.config import SnapshotsSection
from dare_core.api import Problem, UserError
from dare_core.diffusion.completion import completion_mask
from dare_core.interfaces import LikelihoodEstimator, PlanContext
from dare_core.types import Estimate, Rollout, Rows, Scores, Snapshots, Views


def recorded_snapshots(rows: Rows) -> Snapshots:
    """The snapshots of a rollout.

    Raises:
        UserError: the rows carry none.
    """
    trace = rows.trace if isinstance(rows, Rollout) else None
    if trace is None or trace.snapshots is None:
        raise UserError(
            Problem(
                "the states of single denoising forwards are needed, which these rows do not carry",
                path="likelihood.kind",
                hint="use a rollout backend that provides snapshots",
            )
        )
    return trace.snapshots


class StepGuesses(LikelihoodEstimator):
    """One view per chosen forward; an estimate per view and token [N,L]."""

    config: SnapshotsSection

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """Views ordered by (row, forward); ``draw`` is the forward, ``weight`` the recorded confidence.

        Raises:
            UserError: the model has no mask token, by which guessed positions are told.
        """
        if context.facts.mask_id is None:
            raise UserError(Problem("this model has no mask token: no position is a masked one", path="likelihood"))
        snapshots = recorded_snapshots(rows)
        everything = torch.arange(len(snapshots.row), device=snapshots.row.device)
        # Snapshots stand in the order of rows and forwards.
        chosen = everything if context.selection is None else context.selection.sort().values
        row, inputs, guess = snapshots.row[chosen], snapshots.inputs[chosen], snapshots.predicted[chosen]
        scored = (inputs == context.facts.mask_id) & (guess != context.facts.mask_id) & rows.response[row]
        if self.config.scored_tokens == "completion":
            scored &= completion_mask(guess, rows.response[row], context.facts.eos_ids)
        return Views(
            inputs=inputs,
            targets=guess,
            valid=rows.valid[row],
            scored=scored,
            weight=torch.where(scored, snapshots.confidence[chosen], 0.0),
            row=row,
            draw=snapshots.step[chosen],
            prompt_length=rows.prompt_length[row],
            layout=context.layout,
            temperature=context.temperature if self.config.temperature is None else self.config.temperature,
        )

    @property
    def separate_views(self) -> bool:
        """A view is a recorded forward."""
        return True

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """Estimates [N,L] at the guessed positions."""
        value = torch.where(views.scored, scores.logp, 0.0)
        return Estimate(value=value, per="view-token", bound="surrogate", mask=views.scored)
