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

Ties = Literal["exact", "published"]


def log_odds(logits: Tensor, token: Tensor) -> Tensor:
    """log(p / (1 - p)) of ``token`` [M]; -inf for an excluded token, +inf if all others are excluded."""
    wide = logits.to(torch.float64)
    others = wide.scatter(1, token[:, None], -torch.inf).logsumexp(dim=1)
    return wide.gather(1, token[:, None])[:, 0] - others


def log_probability(odds: Tensor) -> Tensor:
    """Log p from :func:`log_odds`, accurate near p = 0 and p = 1."""
    return logsigmoid(odds)


def token_confidence(logits: Tensor, token: Tensor, ties: Ties = "exact") -> Tensor:
    """Orders by the probability of ``token`` [M]."""
    if ties == "published":
        return logits.softmax(dim=1).gather(1, token[:, None])[:, 0].to(torch.float64)
    return log_odds(logits, token)


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
    wide = logits.to(torch.float64)
    best = wide.argmax(dim=1, keepdim=True)
    surprise = wide.logsumexp(dim=1, keepdim=True) - wide
    # The likeliest token's -log p would be a difference of nearly equal numbers.
    surprise = surprise.scatter(1, best, -log_probability(log_odds(wide, best[:, 0]))[:, None])
    return torch.where(surprise == torch.inf, 0.0, torch.exp(-surprise) * surprise).sum(dim=1)


def entropy_confidence(logits: Tensor, ties: Ties = "exact") -> Tensor:
    """Orders by negative entropy; ``published`` = sum of p log(p + 1e-10) (Dream's ``entropy``)."""
    if ties == "published":
        probability = logits.softmax(dim=1)
        return (probability * torch.log(probability + 1e-10)).sum(dim=1).to(torch.float64)
    return -entropy(logits)
