"""Supervised losses of the product on given views and logits."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_elbo.config import SftSection
from dare_algos_elbo.estimators.bernoulli import Bernoulli
from dare_algos_elbo.estimators.config import BernoulliSection
from dare_algos_elbo.sft import Sft
from dare_core.diffusion.corruption import build_views
from dare_core.interfaces import LikelihoodEstimator
from dare_core.types import LossInputs, Progress, Rows, Scores, Views
from tests.made_inputs import plan_context, scores_from_logits


def sft_loss(rows: Rows, views: Views, logits: Tensor, normalizer: str = "sequence") -> Tensor:
    """The product's loss of given views under given logits [B,L,V]."""
    return loss_of_scores(Bernoulli(BernoulliSection()), rows, views, scores_from_logits(views, logits), normalizer)


def loss_of_scores(
    estimator: LikelihoodEstimator, rows: Rows, views: Views, scores: Scores, normalizer: str = "sequence"
) -> Tensor:
    """The product's loss of given views and their scores."""
    live = estimator.reduce(views, scores, rows)
    inputs = LossInputs(
        rows=rows,
        views=views,
        scores=scores,
        live=live,
        old=live.detached(),
        reference=None,
        advantages=None,
        progress=Progress(step=0, total=1),
    )
    return Sft(SftSection(loss_normalizer=normalizer)).loss(inputs).loss


def given_views(rows: Rows, hidden: Tensor, weight: Tensor, mask_id: int) -> Views:
    """One view per row with recorded hidden positions and weights."""
    index = torch.arange(len(rows))
    return build_views(
        rows,
        hidden,
        mask_id=mask_id,
        layout=plan_context(mask_id).layout,
        row=index,
        draw=torch.zeros_like(index),
        weight=weight,
    )
