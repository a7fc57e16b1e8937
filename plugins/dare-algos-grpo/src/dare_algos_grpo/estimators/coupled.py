"""Coupled estimate (Gong et al. 2025, DiffuCoder, arXiv:2506.20639, section 4.2).

Three views of a response: v0 hides all of it, v1 hides the tokens with u < q, v2 the others. With q in (0, 1)::

    l_j = 1/2 ( log p_v0(y_j) + [u_j < q] log p_v1(y_j) / q + [u_j >= q] log p_v2(y_j) / (1 - q) )

Each token is scored once in a partly visible context, which lowers the variance; l is not a log-probability.
The share q is drawn once per batch in the authors' code. Prompt tokens are never hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_grpo.config import CoupledSection
from dare_algos_grpo.estimators.token_sums import weighted_token_sum
from dare_core.diffusion.corruption import build_views, complementary_masks
from dare_core.diffusion.seeds import batch_uniforms, uniforms
from dare_core.interfaces import LikelihoodEstimator, PlanContext
from dare_core.types import Estimate, Rows, Scores, Views


class Coupled(LikelihoodEstimator):
    """Three views per row; an estimate per token [B,L]."""

    config: CoupledSection

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """Three views per row: all hidden, u < q, u >= q."""
        address = context.address.within("ratio")
        if self.config.ratio_per == "batch":
            u = batch_uniforms(address, 1, rows.tokens.device).expand(len(rows))
        else:
            u = uniforms(address, rows.sample_id, 0, 1)[:, 0]
        ratio = self.config.ratio_low + (self.config.ratio_high - self.config.ratio_low) * u
        return self.views(rows, context, uniforms(context.address, rows.sample_id, 0, rows.tokens.shape[1]), ratio)

    def views(self, rows: Rows, context: PlanContext, uniform: Tensor, ratio: Tensor) -> Views:
        """The plan for given uniform numbers [B,L] and shares ``ratio`` [B]."""
        first, second = complementary_masks(uniform, ratio[:, None], rows.response)
        count, width = rows.tokens.shape
        device = rows.tokens.device
        return build_views(
            rows,
            torch.stack([rows.response, first, second], dim=1).reshape(3 * count, width),
            mask_id=context.facts.mask_id,
            layout=context.layout,
            row=torch.arange(count, device=device).repeat_interleave(3),
            draw=torch.arange(3, device=device).repeat(count),
            weight=torch.stack([torch.ones_like(ratio), 1 / ratio, 1 / (1 - ratio)], dim=1).reshape(-1, 1),
        )

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """Estimates [B,L] at response tokens."""
        value = weighted_token_sum(views, scores, rows) / 2
        return Estimate(value=value, per="token", bound="surrogate", mask=rows.response)
