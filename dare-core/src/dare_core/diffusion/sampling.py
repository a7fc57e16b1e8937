"""One token per position from its logits: temperature, filters, and draws in float64.

Float64 matters: Gumbel noise computed in float32 or lower acts like a lower temperature (Zheng et al., "Masked
Diffusion Models are Secretly Time-Agnostic Masked Models", arXiv 2409.02908). The default draw inverts the
cumulative distribution at one uniform number per position; ``gumbel`` is LLaDA's form, with V numbers per position.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Sampler = Literal["categorical", "gumbel"]


def filter_logits(logits: Tensor, *, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0) -> Tensor:
    """Exclude tokens that a filter drops.

    Each filter looks at the distribution as given, so their order does not matter: a token stays if all keep it.

    Args:
        logits: [M,V], temperature applied.
        top_p: keep the smallest set of likeliest tokens whose probability exceeds it; 1 = off.
        top_k: keep that many likeliest tokens; 0 = off. Equal logits: the lower id is kept.
        min_p: drop tokens less probable than this share of the likeliest; 0 = off.

    Returns:
        [M,V] float64 logits, -inf where dropped; the likeliest token always stays.
    """
    wide = logits.to(torch.float64)
    if top_p >= 1 and not top_k and not min_p:
        return wide
    ordered, order = wide.sort(dim=1, descending=True, stable=True)
    kept = torch.ones_like(ordered, dtype=torch.bool)
    if top_p < 1:
        probability = ordered.softmax(dim=1)
        kept &= probability.cumsum(dim=1) - probability <= top_p
    if top_k:
        kept[:, top_k:] = False
    if min_p:
        kept &= (ordered - ordered[:, :1]).exp() >= min_p
    kept[:, 0] = True
    return wide.masked_fill(~torch.zeros_like(kept).scatter(1, order, kept), -torch.inf)


def categorical(logits: Tensor, uniform: Tensor) -> Tensor:
    """Draw from softmax(logits) by inverting the cumulative distribution.

    Args:
        logits: [M,V], temperature and filters applied; -inf = never drawn.
        uniform: [M] float64 in (0, 1).

    Returns:
        [M] int64 tokens: the first whose cumulative probability exceeds ``uniform``.
    """
    wide = logits.to(torch.float64)
    cumulative = (wide - wide.amax(dim=1, keepdim=True)).exp().cumsum(dim=1)
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logits.shape[1] - 1)


def gumbel_scores(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """Log of exp(z) / (-log u)^T in float64; its argmax is a draw from softmax(z / T).

    Args:
        logits: [M,V] without temperature.
        uniform: [M,V] float64 in (0, 1).
        temperature: T.
    """
    return logits.to(torch.float64) - temperature * torch.log(-torch.log(uniform))
