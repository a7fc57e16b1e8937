"""Bernoulli estimate of the ELBO (Sahoo et al. 2024, arXiv:2406.07524; LLaDA, arXiv:2502.09992, eq. 3-5).

One time t per row and draw, each response token hidden with probability 1 - alpha(t), its log-probability weighted
by w(t) = -alpha'(t) / (1 - alpha(t)) (t and 1/t for the linear schedule)::

    B(y) = mean over draws of  w(t) sum_{i hidden} log p(y_i | view),   t = low + (high - low) u

Prompt tokens are never hidden. With times in [low, 1] the expectation is that of the ELBO up to O(low): t has
density 1/(1 - low) there and the weight does not undo it. A draw that hides nothing contributes 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_elbo.config import BernoulliSection
from dare_core.diffusion.corruption import bernoulli_mask, build_views, times
from dare_core.diffusion.schedules import alpha, elbo_weight
from dare_core.diffusion.seeds import uniforms
from dare_core.interfaces import LikelihoodEstimator, PlanContext
from dare_core.types import Estimate, Rows, Scores, Views


class Bernoulli(LikelihoodEstimator):
    """``draws`` views per row; an estimate per row [B], summed over its tokens."""

    config: BernoulliSection

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """Views ordered by (row, draw)."""
        draws = self.config.draws
        sample = rows.sample_id.repeat_interleave(draws)
        draw = torch.arange(draws, device=sample.device).repeat(len(rows))
        time = uniforms(context.address.within("time"), sample, draw, 1)[:, 0]
        return self.views(rows, context, time, uniforms(context.address, sample, draw, rows.tokens.shape[1]))

    def views(self, rows: Rows, context: PlanContext, time_uniform: Tensor, token_uniform: Tensor) -> Views:
        """The plan for given uniform numbers: ``time_uniform`` [N], ``token_uniform`` [N,L], N = rows x draws."""
        draws, device = self.config.draws, rows.tokens.device
        row = torch.arange(len(rows), device=device).repeat_interleave(draws)
        time = times(time_uniform, self.config.time_low, self.config.time_high)
        weight = elbo_weight(self.config.schedule, time) if self.config.weight == "elbo" else torch.ones_like(time)
        return build_views(
            rows,
            bernoulli_mask(token_uniform, 1 - alpha(self.config.schedule, time)[:, None], rows.response[row]),
            mask_id=context.facts.mask_id,
            layout=context.layout,
            row=row,
            draw=torch.arange(draws, device=device).repeat(len(rows)),
            weight=weight[:, None],
        )

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """B [B]: mean over draws of the weighted sums, with its standard error over more than one draw."""
        draws = self.config.draws
        sums = torch.where(views.scored, views.weight * scores.logp, 0.0).sum(dim=1).view(len(rows), draws)
        return Estimate(
            value=sums.mean(dim=1),
            per="row",
            bound="lower" if self.config.weight == "elbo" else "surrogate",
            mask=rows.response.any(dim=1),
            draws=draws,
            stderr=sums.detach().std(dim=1) / draws**0.5 if draws > 1 else None,
        )
