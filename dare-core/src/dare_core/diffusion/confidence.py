"""How sure a prediction is: probability of a token, margin and entropy, in forms that keep their order.

A probability next to 1 rounds to 1, so ranking by probability turns sure predictions into ties. The ``exact``
forms are strictly increasing in the named quantity and do not saturate: log-odds for a probability,
-log(1 - m) for a margin m, and the negative entropy summed from terms without cancellation. The ``published``
forms compare plain probabilities in the dtype of the logits, as the families' own samplers do.

All functions take ``logits`` [M,V] (-inf = excluded) and return [M] float64, larger = surer.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dare_core.diffusion.vocabulary import best_token, row_sum

Ties = Literal["exact", "published"]


def log_odds(logits: Tensor, token: Tensor) -> Tensor:
    """log(p / (1 - p)) of ``token`` [M]; -inf for an excluded token, +inf if all others are excluded."""
    own = logits.gather(1, token[:, None])[:, 0].to(torch.float64)
    return own - _log_sum_exp(logits.scatter(1, token[:, None], -torch.inf))


def _log_sum_exp(scratch: Tensor) -> Tensor:
    """[M] float64 of [M,V], which is overwritten."""
    peak = scratch.amax(dim=1, keepdim=True).clamp(min=torch.finfo(scratch.dtype).min)
    mass = row_sum(scratch.sub_(peak).exp_())
    return mass.log_() + peak[:, 0].to(torch.float64)


def log_probability(odds: Tensor) -> Tensor:
    """Log p from :func:`log_odds`, accurate near p = 0 and p = 1."""
    return logsigmoid(odds)


def token_confidence(logits: Tensor, token: Tensor, ties: Ties = "exact") -> Tensor:
    """Orders by the probability of ``token`` [M]."""
    if ties == "published":
        return logits.softmax(dim=1).gather(1, token[:, None])[:, 0].to(torch.float64)
    return log_odds(logits, token)


def scaled_confidence(confidence: Tensor, factor: Tensor, ties: Ties = "exact") -> Tensor:
    """A confidence by probability p [M] as it would be for ``factor`` x p; ``factor`` [M] in [0, 1]."""
    if ties == "published":
        return confidence * factor
    logp = log_probability(confidence) + factor.log()
    return torch.where(factor == 1, confidence, logp - torch.log1p(-logp.exp()))


def margin_confidence(logits: Tensor, ties: Ties = "exact") -> Tensor:
    """Orders by p1 - p2, the probabilities of the two likeliest tokens (Dream's ``topk_margin``)."""
    if ties == "published":
        top = logits.softmax(dim=1).topk(2, dim=1).values
        return (top[:, 0] - top[:, 1]).to(torch.float64)
    wide = logits.to(torch.float64)
    second, first = wide.topk(2, dim=1)
    # 1 - m = (1 - p1) + p2: the logits of all but the first, and of the second once more.
    rest = wide.scatter(1, first[:, :1], -torch.inf)
    return wide.logsumexp(dim=1) - torch.cat([rest, second[:, 1:]], dim=1).logsumexp(dim=1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats; relative accuracy is kept as it approaches 0."""
    best = best_token(logits)
    logp = log_probability(log_odds(logits, best))
    # With d the distance to the likeliest token, of which logp is known: -log p = d - logp. Its own term is added
    # apart, since -log p would be a difference of nearly equal numbers; all other terms are sums of positive ones.
    distance = logits.gather(1, best[:, None]) - logits
    mass = torch.exp(-distance).scatter_(1, best[:, None], 0.0)
    weighted = row_sum(distance.clamp_(max=torch.finfo(logits.dtype).max).mul_(mass))
    return logp.exp() * (weighted - logp * (1 + row_sum(mass)))


def entropy_confidence(logits: Tensor, ties: Ties = "exact") -> Tensor:
    """Orders by negative entropy; ``published`` = sum of p log(p + 1e-10) (Dream's ``entropy``)."""
    if ties == "published":
        probability = logits.softmax(dim=1)
        return (probability * torch.log(probability + 1e-10)).sum(dim=1).to(torch.float64)
    return -entropy(logits)
