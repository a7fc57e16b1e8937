"""One-step mean-field estimate (Zhao et al. 2025, d1, arXiv:2504.12216, section 3.1).

The whole response is hidden and each prompt token is hidden with probability p; one forward scores all
response tokens as if they were independent given what is left of the prompt::

    l_j = log p(y_j | q', M ... M)

Hiding part of the prompt makes the contexts of several inner updates differ. Models with block attention see
earlier blocks clean, so there the hidden prompt matters only inside the response's first block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_grpo.config import OneStepSection
from dare_algos_grpo.estimators.token_sums import weighted_token_sum
from dare_core.diffusion.corruption import bernoulli_mask, build_views
from dare_core.diffusion.seeds import uniforms
from dare_core.interfaces import LikelihoodEstimator, PlanContext
from dare_core.types import Estimate, Rows, Scores, Views


def one_step_mask(rows: Rows, uniform: Tensor, prompt_mask: float) -> Tensor:
    """[B,L] bool hidden positions: all response tokens, and prompt tokens with ``uniform`` [B,L] < ``prompt_mask``."""
    return rows.response | bernoulli_mask(uniform, prompt_mask, rows.prompt)


class OneStep(LikelihoodEstimator):
    """One view per row; an estimate per token [B,L]."""

    config: OneStepSection

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """One view per row."""
        uniform = uniforms(context.address, rows.sample_id, 0, rows.tokens.shape[1])
        return self.views(rows, context, uniform)

    def views(self, rows: Rows, context: PlanContext, uniform: Tensor) -> Views:
        """The plan for given uniform numbers [B,L]."""
        index = torch.arange(len(rows), device=rows.tokens.device)
        return build_views(
            rows,
            one_step_mask(rows, uniform, self.config.prompt_mask),
            mask_id=context.facts.mask_id,
            layout=context.layout,
            row=index,
            draw=torch.zeros_like(index),
        )

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """Estimates [B,L] at response tokens."""
        value = weighted_token_sum(views, scores, rows)
        return Estimate(value=value, per="token", bound="surrogate", mask=rows.response)
