"""Random masks (Wang et al. 2025, TraceRL, arXiv:2509.06949, the baseline it is compared with).

Each draw k of a row takes a share t uniform in [low, high], hides each response token with probability t, and scores
what it hides::

    l_kj = log p(y_j | prompt, tokens that draw k shows),   j hidden in draw k

With ``complement`` a second view hides the other tokens, so that every token is scored once per draw (the authors'
coupled variant). Tokens are not weighted: each view is a transition of its own, as each step is in a replay. Views that
hide nothing are left out. Prompt tokens are never hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_grpo.config import RandomMaskSection
from dare_core.diffusion.corruption import build_views, complementary_masks, times
from dare_core.diffusion.seeds import uniforms
from dare_core.interfaces import LikelihoodEstimator, PlanContext
from dare_core.types import Estimate, Rows, Scores, Views


class RandomMask(LikelihoodEstimator):
    """``draws`` views per row, or twice as many; an estimate per view and token [N,L]."""

    config: RandomMaskSection

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """Views ordered by (row, draw)."""
        draws, (count, width) = self.config.draws, rows.tokens.shape
        draw = torch.arange(draws, device=rows.tokens.device).repeat(count)
        sample = rows.sample_id.repeat_interleave(draws)
        share = uniforms(context.address.within("ratio"), sample, draw, 1)[:, 0]
        ratio = times(share, self.config.ratio_low, self.config.ratio_high)
        return self.views(rows, context, uniforms(context.address, sample, draw, width), ratio)

    def views(self, rows: Rows, context: PlanContext, uniform: Tensor, ratio: Tensor) -> Views:
        """The plan for given uniform numbers [B x draws,L] and shares ``ratio`` [B x draws], ordered by (row, draw)."""
        row = torch.arange(len(rows), device=uniform.device).repeat_interleave(len(ratio) // max(1, len(rows)))
        hidden, others = complementary_masks(uniform, ratio[:, None], rows.response[row])
        per_row = len(ratio) // max(1, len(rows))
        if self.config.complement:
            hidden = torch.stack([hidden, others], dim=1).flatten(0, 1)
            row, per_row = row.repeat_interleave(2), 2 * per_row
        draw = torch.arange(per_row, device=uniform.device).repeat(len(rows))
        some = hidden.any(dim=1)
        return build_views(
            rows, hidden[some], mask_id=context.facts.mask_id, layout=context.layout, row=row[some], draw=draw[some]
        )

    @property
    def separate_views(self) -> bool:
        """A view is a draw."""
        return True

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """Estimates [N,L] at hidden tokens."""
        value = torch.where(views.scored, scores.logp, 0.0)
        return Estimate(value=value, per="view-token", bound="surrogate", mask=views.scored, draws=self.config.draws)
