"""Replay of the decoder's own steps (Yang et al. 2025, CJ-GRPO, arXiv:2509.23924).

View k of a row shows the tokens committed at steps < k and hides the rest of the response; the tokens committed
at step k are scored::

    l_kj = log p(y_j | prompt, tokens of steps < k),   j committed at step k

These are the transitions that were sampled: at sampling temperature 1 the sum over k and j is the log-probability
of the decoder's token choices. With ``merge_steps`` m, m consecutive steps are scored in the state before the
first of them. Tokens that no step committed stay hidden in every view and are never scored. In block layouts one view
replays the same step of every block (:mod:`dare_algos_grpo.estimators.replay`); TraceRL (Wang et al. 2025,
arXiv:2509.06949, section 4) trains on the same views, with merging (its shrink) and without padding tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_grpo.config import TrajectorySection
from dare_algos_grpo.estimators.replay import replay_views
from dare_core.api import Problem, UserError
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
        return replay_views(
            rows,
            commit_steps(rows),
            context,
            merge=self.config.merge_steps,
            scored=self._scored(rows, context.facts.pad_id),
        )

    def _scored(self, rows: Rows, pad_id: int) -> Tensor | None:
        """[B,L] bool: all but the padding tokens after the first ``pad_targets``."""
        if self.config.pad_targets is None:
            return None
        pad = (rows.tokens == pad_id) & rows.response
        return ~pad | (pad.cumsum(dim=1) <= self.config.pad_targets)

    @property
    def separate_views(self) -> bool:
        """A view is a recorded step, or steps that were merged."""
        return True

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """Estimates [N,L] at the tokens of each view's step."""
        value = torch.where(views.scored, scores.logp, 0.0)
        exact = self.config.merge_steps == 1
        return Estimate(value=value, per="view-token", bound="exact" if exact else "surrogate", mask=views.scored)
