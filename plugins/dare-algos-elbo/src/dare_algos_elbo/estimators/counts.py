"""Estimates from an exact number of hidden tokens: what the forms of LLaDA and ESPO share.

With n response tokens, a count x uniform on low..n and a uniform set of x of them hidden::

    B = (n + 1 - low) / x  sum_{i hidden} log p(y_i | view)

has the ELBO as its mean: the subset form sum_k 1/k E_{|M| = k} sum_{i in M} of it, one k at a time. Counts of several
draws are systematic (:func:`dare_core.diffusion.counts.systematic_counts`), so that they cover the range.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from dare_algos_elbo.estimators.config import CountSection
from dare_algos_elbo.estimators.draws import DrawEstimator, Lines, targeted
from dare_core.diffusion.corruption import build_views
from dare_core.diffusion.counts import count_mask, systematic_counts, uniform_counts
from dare_core.diffusion.seeds import batch_uniforms, uniforms
from dare_core.interfaces import PlanContext
from dare_core.types import Address, Rows, Views
from dare_core.types.estimate import Bound


class CountEstimator(DrawEstimator):
    """``draws`` exact counts per row."""

    config: CountSection
    #: smallest count
    low: ClassVar[int] = 1

    @property
    def bound(self) -> Bound:
        """The published rounding favours some counts."""
        return "lower" if self.config.rounding == "exact" else "surrogate"

    @property
    def independent_draws(self) -> int:
        """Systematic sets of draws."""
        if self.config.systematic != "draws":
            return self.config.draws
        return self.config.draws // (self.config.set_size or self.config.draws)

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """Views ordered by (row, draw)."""
        rows = targeted(rows, self.config.targets, context.facts)
        lines = Lines.of(rows, self.config.draws, self.config.shared_by)
        start = self._starts(lines, context.address.within("count"))
        high = rows.response.sum(dim=1)[lines.row]
        count = self.counts(lines, uniform_counts(start, self.low, high), high)
        numbers = uniforms(context.address, lines.owner, lines.draw, rows.tokens.shape[1])
        return self.views(rows, context, count, numbers)

    def counts(self, lines: Lines, start: Tensor, high: Tensor) -> Tensor:
        """[N] hidden tokens of each line, from the first count drawn for its set and its number of tokens [N]."""
        index, of = torch.zeros_like(lines.draw), 1
        if self.config.systematic == "draws":
            of = self.config.set_size or self.config.draws
            index = lines.draw % of
        elif self.config.systematic == "rows":
            owners, index = torch.unique(lines.owner, return_inverse=True)
            of = len(owners)
        return systematic_counts(start, index, of, self.low, high, self.config.rounding)

    def views(self, rows: Rows, context: PlanContext, count: Tensor, numbers: Tensor) -> Views:
        """The plan for given counts [N] and numbers [N,L], N = rows x draws: the smallest numbers are hidden."""
        lines = Lines.of(rows, self.config.draws, self.config.shared_by)
        response = rows.response[lines.row]
        return build_views(
            rows,
            count_mask(numbers, count, response),
            mask_id=context.facts.mask_id,
            layout=context.layout,
            row=lines.row,
            draw=lines.draw,
            weight=self.weights(response.sum(dim=1), count)[:, None],
        )

    def weights(self, length: Tensor, count: Tensor) -> Tensor:
        """[N] float64 weight of a hidden token: (n + 1 - low) / x."""
        return (length + 1 - self.low).to(torch.float64) / count.clamp(min=1)

    def _starts(self, lines: Lines, address: Address) -> Tensor:
        """[N] uniform number behind each line's first count."""
        if self.config.systematic == "rows":
            return batch_uniforms(address, self.config.draws, lines.draw.device)[lines.draw]
        number = lines.draw
        if self.config.systematic == "draws":
            number = lines.draw // (self.config.set_size or self.config.draws)
        return uniforms(address, lines.owner, number, 1)[:, 0]
