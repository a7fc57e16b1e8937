"""ESPO's estimate of the ELBO (arXiv:2512.03759): counts from none to all, in complementary pairs.

A count x is uniform on 0..n with weight (n + 1) / x; x = 0 contributes 0. Coupled, a second view hides the complement
with weight (n + 1) / (n - x), and the two are averaged: every token is scored once per pair, and what a small set makes
large its complement makes small. Counts are systematic over the rows of the batch, ordered by sample id, also where
their lengths differ: each row's range is gone around from the same relative start.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from dare_algos_elbo.estimators.config import EspoEstimatorSection
from dare_algos_elbo.estimators.counts import CountEstimator
from dare_algos_elbo.estimators.draws import Lines
from dare_core.diffusion.corruption import build_views
from dare_core.diffusion.counts import count_mask
from dare_core.interfaces import PlanContext
from dare_core.types import Rows, Views


class Espo(CountEstimator):
    """Counts 0..n; two views per draw if coupled."""

    config: EspoEstimatorSection
    low: ClassVar[int] = 0

    @property
    def views_per_draw(self) -> int:
        """Of a pair."""
        return 2 if self.config.coupled else 1

    def views(self, rows: Rows, context: PlanContext, count: Tensor, numbers: Tensor) -> Views:
        """As the base's; coupled, each draw's second view hides the complement."""
        if not self.config.coupled:
            return super().views(rows, context, count, numbers)
        lines = Lines.of(rows, self.config.draws, self.config.shared_by)
        response = rows.response[lines.row]
        hidden, length = count_mask(numbers, count, response), response.sum(dim=1)
        pair = torch.stack([hidden, response & ~hidden], dim=1).flatten(0, 1)
        counts = torch.stack([count, length - count], dim=1).flatten()
        return build_views(
            rows,
            pair,
            mask_id=context.facts.mask_id,
            layout=context.layout,
            row=lines.row.repeat_interleave(2),
            draw=torch.stack([2 * lines.draw, 2 * lines.draw + 1], dim=1).flatten(),
            weight=self.weights(length.repeat_interleave(2), counts)[:, None],
        )
