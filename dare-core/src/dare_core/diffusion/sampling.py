"""One token per position from its logits: temperature, filters, and draws.

The default draw inverts the cumulative distribution at one uniform number per position. ``gumbel`` is LLaDA's form,
with V numbers per position, in float64: Gumbel noise of float32 or lower acts like a lower temperature (Zheng et al.,
"Masked Diffusion Models are Secretly Time-Agnostic Masked Models", arXiv 2409.02908).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dare_core.diffusion.vocabulary import draw_by_mass

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
    return draw_by_mass((logits - logits.amax(dim=1, keepdim=True)).exp_(), uniform)


def gumbel_scores(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """Log of exp(z) / (-log u)^T in float64; its argmax is a draw from softmax(z / T).

    Args:
        logits: [M,V] without temperature.
        uniform: [M,V] float64 in (0, 1).
        temperature: T.
    """
    return logits.to(torch.float64) - temperature * torch.log(-torch.log(uniform))
