"""Per-block stratified estimate (EBPO, as ported by arXiv:2604.04215; the method is of the LLaDA2.1 report).

Every view hides tokens in every block of the response. The cells (draw, block) of a row, N in all and in this order,
take evenly spaced levels from one uniform number u, and in cell c of n tokens m of them are hidden::

    level = (u + c / N) mod 1,   m = min(floor(level n) + 1, n),   B = sum over blocks  n / m  sum_{i hidden} log p(y_i)

m is uniform on 1..n in every cell, so the mean is the block ELBO, block by block. Blocks are those of the layout, cut
to the response; in a full layout the whole response is one block.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dare_algos_elbo.estimators.config import BlockStratifiedSection
from dare_algos_elbo.estimators.draws import DrawEstimator, Lines, targeted
from dare_core.diffusion.corruption import build_views
from dare_core.diffusion.counts import group_ranks
from dare_core.diffusion.layouts import block_index
from dare_core.diffusion.seeds import uniforms
from dare_core.interfaces import PlanContext
from dare_core.types import Rows, Views
from dare_core.types.estimate import Bound


class BlockStratified(DrawEstimator):
    """``draws`` views per row, each with hidden tokens in every block."""

    config: BlockStratifiedSection

    @property
    def bound(self) -> Bound:
        """``draw_weights`` that do not add up to 1 give a multiple of the ELBO."""
        weights = self.config.draw_weights
        return "lower" if weights is None or math.isclose(sum(weights), 1) else "surrogate"

    @property
    def independent_draws(self) -> int:
        """All draws share one number."""
        return 1

    def combined(self, draws: Tensor) -> Tensor:
        """The mean, or the sum with ``draw_weights``."""
        if self.config.draw_weights is None:
            return draws.mean(dim=1)
        weights = torch.tensor(self.config.draw_weights, dtype=torch.float64, device=draws.device)
        return (draws * weights.to(draws.dtype)).sum(dim=1)

    def standard_error(self, by_draw: Tensor) -> Tensor | None:
        """Of the weighted sum, for draws of equal variance."""
        error, weights = super().standard_error(by_draw), self.config.draw_weights
        return error if error is None or weights is None else error * math.hypot(*weights) * len(weights) ** 0.5

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """Views ordered by (row, draw)."""
        rows = targeted(rows, self.config.targets, context.facts)
        lines = Lines.of(rows, self.config.draws, self.config.shared_by)
        first = uniforms(context.address.within("level"), lines.owner, 0, 1)[:, 0]
        numbers = uniforms(context.address, lines.owner, lines.draw, rows.tokens.shape[1])
        return self.views(rows, context, first, numbers)

    def views(self, rows: Rows, context: PlanContext, first: Tensor, numbers: Tensor) -> Views:
        """The plan for given first levels [N], equal for the draws of a row, and numbers [N,L]."""
        lines = Lines.of(rows, self.config.draws, self.config.shared_by)
        part = self._response_blocks(rows, context)[lines.row]
        place, size = group_ranks(numbers, part)
        blocks = (part.amax(dim=1) + 1).clamp(min=1)[:, None]
        cell = lines.draw[:, None] * blocks + part.clamp(min=0)
        level = (first[:, None] + cell.to(torch.float64) / (self.config.draws * blocks)) % 1
        count = torch.minimum((level * size).floor().long() + 1, size)
        return build_views(
            rows,
            place < count,
            mask_id=context.facts.mask_id,
            layout=context.layout,
            row=lines.row,
            draw=lines.draw,
            weight=size.to(torch.float64) / count.clamp(min=1),
        )

    @staticmethod
    def _response_blocks(rows: Rows, context: PlanContext) -> Tensor:
        """[B,L] int64 block of each response position, counted from the response's first; -1 elsewhere."""
        block = block_index(rows.valid, rows.prompt_length, context.layout)
        first = block.masked_fill(~rows.response, torch.iinfo(torch.int64).max).amin(dim=1, keepdim=True)
        return torch.where(rows.response, block - first, -1)
