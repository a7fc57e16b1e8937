"""Exact log-probability in left-to-right order (JustGRPO, arXiv:2601.15165).

View t of a row shows the response tokens before position t and hides the others; position t is scored::

    l_t = log p(y_t | prompt, y_<t, M ... M),   log p(y) = sum_t l_t

which is the log-probability of decoding one token at a time from left to right (block length 1) at the temperature
that logits are divided by. R views per row, in full layouts; in block layouts one per place in a block.

Memory: views hold token ids and flags, 22 bytes per row, view and position (128 rows of 256 + 512 tokens: about 0.6
GB on the CPU); the model sees them in micro-batches.
"""

from __future__ import annotations

import torch

from dare_algos_grpo.config import LeftToRightSection
from dare_algos_grpo.estimators.replay import replay_views
from dare_algos_grpo.estimators.token_sums import weighted_token_sum
from dare_core.interfaces import LikelihoodEstimator, PlanContext
from dare_core.types import Estimate, Rows, Scores, Views


class LeftToRight(LikelihoodEstimator):
    """One view per response position; an exact estimate per token [B,L]."""

    config: LeftToRightSection

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """Views ordered by (row, position); ``draw`` is the position within the response, or within its block."""
        place = torch.where(rows.response, rows.response.cumsum(dim=1) - 1, -1)
        temperature = self.config.temperature
        return replay_views(
            rows, place, context, temperature=context.temperature if temperature is None else temperature
        )

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """Estimates [B,L] at response tokens."""
        value = weighted_token_sum(views, scores, rows)
        return Estimate(value=value, per="token", bound="exact", mask=rows.response)
