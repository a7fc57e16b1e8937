"""Replay of the decoder's own steps (Yang et al. 2025, CJ-GRPO, arXiv:2509.23924).

View k of a row shows the tokens committed at steps < k and hides the rest of the response; the tokens committed
at step k are scored::

    l_kj = log p(y_j | prompt, tokens of steps < k),   j committed at step k

These are the transitions that were sampled: at sampling temperature 1 the sum over k and j is the log-probability
of the decoder's token choices. With ``merge_steps`` m, m consecutive steps are scored in the state before the
first of them. Tokens that no step committed stay hidden in every view and are never scored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_grpo.config import TrajectorySection
from dare_core.api import Problem, UserError
from dare_core.diffusion.corruption import build_views
from dare_core.diffusion.trajectory import hidden_before
from dare_core.interfaces import LikelihoodEstimator, PlanContext
from dare_core.types import Estimate, Rollout, Rows, Scores, Views


def commit_steps(rows: Rows) -> Tensor:
    """[B,L] int64 commit steps of a rollout whose trace replays.

    Raises:
        UserError: the rows carry no commit steps, or tokens changed after they were committed.
    """
    trace = rows.trace if isinstance(rows, Rollout) else None
    if trace is None:
        raise UserError(
            Problem(
                "the trajectory estimator replays commit steps, which these rows do not carry",
                path="likelihood.kind",
                hint="use a rollout backend that provides commit-step",
            )
        )
    if not trace.replayable:
        raise UserError(
            Problem(
                "tokens changed after their commit (editing or remasking), so commit steps cannot be replayed",
                path="rollout.selection",
                hint="decode with a rule that commits each token once",
            )
        )
    return torch.where(rows.response, trace.commit_step, -1)


class Trajectory(LikelihoodEstimator):
    """One view per row and step in which the row committed tokens; an estimate per view and token [N,L]."""

    config: TrajectorySection

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """Views ordered by (row, step); ``draw`` is the step, divided by ``merge_steps``."""
        committed = commit_steps(rows)
        step = torch.where(committed >= 0, committed.div(self.config.merge_steps, rounding_mode="floor"), -1)
        index = torch.arange(len(rows), device=step.device)[:, None].expand_as(step)
        pairs = torch.unique(torch.stack([index[step >= 0], step[step >= 0]], dim=1), dim=0)
        row, draw = pairs[:, 0], pairs[:, 1]
        of_view = step[row]
        return build_views(
            rows,
            hidden_before(of_view, rows.response[row], draw),
            mask_id=context.facts.mask_id,
            layout=context.layout,
            row=row,
            draw=draw,
            scored=of_view == draw[:, None],
        )

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """Estimates [N,L] at the tokens of each view's step."""
        value = torch.where(views.scored, scores.logp, 0.0)
        exact = self.config.merge_steps == 1
        return Estimate(value=value, per="view-token", bound="exact" if exact else "surrogate", mask=views.scored)
