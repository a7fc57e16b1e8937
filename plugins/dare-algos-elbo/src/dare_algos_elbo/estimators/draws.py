"""What the estimators of this package share: targets, who owns random numbers, and the mean over draws.

An estimator here is a plan of D draws per row, each of one or more views, whose weighted sums

    B_n = sum over scored i of w_ni log p(y_i | view n)

each have the ELBO (or what the estimator says) as their mean; the estimate of a row is the mean over its views.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dare_algos_elbo.estimators.config import ElboSection
from dare_core.api import Problem, UserError
from dare_core.interfaces import LikelihoodEstimator
from dare_core.types import Estimate, ModelFacts, Rows, Scores, Views
from dare_core.types.estimate import Bound


@dataclass(frozen=True)
class Lines:
    """One line per row and draw, ordered by (row, draw).

    Attributes:
        row: [N] int64 row.
        draw: [N] int64 draw within the row.
        owner: [N] int64 whose random numbers the line takes: the row's sample id, or its group.
    """

    row: Tensor
    draw: Tensor
    owner: Tensor

    @classmethod
    def of(cls, rows: Rows, draws: int, shared_by: str) -> Lines:
        """The lines of a batch."""
        device = rows.tokens.device
        row = torch.arange(len(rows), device=device).repeat_interleave(draws)
        owners = rows.group if shared_by == "group" else rows.sample_id
        return cls(row=row, draw=torch.arange(draws, device=device).repeat(len(rows)), owner=owners.to(device)[row])


def targeted(rows: Rows, targets: str, facts: ModelFacts) -> Rows:
    """The rows with the response that is hidden and scored; what lies behind a completion leaves the row.

    Raises:
        UserError: a target lies outside the vocabulary; names the row.
    """
    if targets == "completion":
        rows = replace(rows, response=rows.completion)
    outside = (rows.response & ((rows.tokens < 0) | (rows.tokens >= facts.vocab_size))).any(dim=1)
    if bool(outside.any()):
        example = rows.example_id[int(outside.nonzero()[0])]
        message = f"a token of the answer lies outside the vocabulary 0..{facts.vocab_size - 1}"
        raise UserError(Problem(message, where=f"row '{example}'", hint="tokenizer and model do not belong together"))
    return rows


def target_lengths(views: Views, rows: Rows) -> Tensor:
    """[B] int64 response tokens of each row that its views hold, so that may be hidden; 0 for rows without views."""
    per_view = (rows.response.to(views.valid.device)[views.row] & views.valid).sum(dim=1)
    return per_view.new_zeros(len(rows)).index_copy(0, views.row, per_view)


def weighted_sums(views: Views, scores: Scores) -> Tensor:
    """[N] B_n of each view. Exactly 0 with a graph where nothing is scored; entries of weight 0 may be NaN."""
    counts = views.scored & (views.weight != 0)
    return torch.where(counts, views.weight * scores.logp, 0.0).sum(dim=1)


class DrawEstimator(LikelihoodEstimator):
    """Base: the mean over draws, per row [B] or per view [N]."""

    config: ElboSection

    @property
    def bound(self) -> Bound:
        """What the expectation is: ``lower`` for the ELBO."""
        return "lower"

    @property
    def views_per_draw(self) -> int:
        """Views that belong to one draw."""
        return 1

    @property
    def independent_draws(self) -> int:
        """Sets of draws that share no random number, within a row."""
        return self.config.draws

    @property
    def separate_views(self) -> bool:
        """With ``per: view``."""
        return self.config.per == "view"

    def combined(self, draws: Tensor) -> Tensor:
        """[B] estimate from the draws' values [B,D]."""
        return draws.mean(dim=1)

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """B [B], or B_n [N] with ``per: view``.

        The standard error is that of independent sets of draws where there are several; for one set of systematic
        draws that of as many independent ones, which overstates it.
        """
        sums, draws = weighted_sums(views, scores), self.config.draws
        mask = target_lengths(views, rows) > 0
        if self.config.per == "view":
            return Estimate(value=sums, per="view", bound=self.bound, mask=mask[views.row], draws=draws)
        by_draw = sums.view(len(rows), draws, self.views_per_draw).mean(dim=2)
        return Estimate(
            value=self.combined(by_draw),
            per="row",
            bound=self.bound,
            mask=mask,
            draws=draws,
            stderr=self.standard_error(by_draw.detach()),
        )

    def standard_error(self, by_draw: Tensor) -> Tensor | None:
        """[B] of the combined draws, from the draws' values [B,D]; None for one draw."""
        count, draws = by_draw.shape
        if draws == 1:
            return None
        sets = self.independent_draws if self.independent_draws > 1 else draws
        return by_draw.view(count, sets, draws // sets).mean(dim=2).std(dim=1) / sets**0.5
