"""Views that hide an exact number of positions: how many, and which. Pure functions of uniform numbers.

With n maskable positions, a count x uniform on 1..n and a uniform set of x of them, n/x times the sum of the set's
log-probabilities has the ELBO as its mean (LLaDA, arXiv:2502.09992, eq. 6); with x uniform on 0..n the weight is
(n+1)/x (ESPO, arXiv:2512.03759). Several draws take *systematic* counts: one start, then even steps around the range.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Rounding = Literal["exact", "published"]


def uniform_counts(uniform: Tensor, low: int, high: Tensor) -> Tensor:
    """Whole numbers uniform on ``low``..``high`` from ``uniform`` numbers in [0, 1); ``low`` where high < low."""
    span = (high - low + 1).clamp(min=1)
    return low + torch.minimum((uniform * span).long(), span - 1)


def systematic_counts(
    start: Tensor, index: Tensor, of: Tensor | int, low: int, high: Tensor, rounding: Rounding = "exact"
) -> Tensor:
    """Counts ``index`` of ``of`` even steps around ``low``..``high``, beginning at ``start``.

    ``exact`` steps by floor(index m / of), m = high - low + 1, so that a uniform start gives a uniform count at every
    index. ``published`` rounds start + index m / of half to even, which is not uniform where index m / of ends in
    1/2: for counts 1..3 in two steps the second one is never 3.

    Args:
        start: [N] int64 in low..high.
        index: [N] int64 in 0..of-1.
        of: steps, [N] or one for all.
        low: smallest count.
        high: [N] int64 largest count.
        rounding: see above.

    Returns:
        [N] int64.
    """
    span = (high - low + 1).clamp(min=1)
    if rounding == "exact":
        moved = start + (index * span).div(torch.as_tensor(of, device=index.device), rounding_mode="floor")
    else:
        moved = (start + index.to(torch.float64) * (span.to(torch.float64) / of)).round().long()
    return (moved - low) % span + low


def ranks(uniform: Tensor, maskable: Tensor) -> Tensor:
    """[N,L] int64: place of each maskable position in the order of its ``uniform`` [N,L] number; L elsewhere."""
    order = uniform.masked_fill(~maskable, torch.inf).argsort(dim=1)
    place = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    return place.masked_fill(~maskable, uniform.shape[1])


def count_mask(uniform: Tensor, count: Tensor, maskable: Tensor) -> Tensor:
    """[N,L] bool: the ``count`` [N] maskable positions with the smallest ``uniform`` [N,L] numbers."""
    return (ranks(uniform, maskable) < count[:, None]) & maskable


def group_ranks(uniform: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
    """Places and sizes within parts of a line, e.g. its blocks.

    Args:
        uniform: [N,L] numbers in [0, 1).
        part: [N,L] int64 part of each position, from 0; -1 = none.

    Returns:
        [N,L] int64 place of each position in the order of its number among those of its part (L outside any), and
        [N,L] int64 size of its part (0 outside any).
    """
    inside = part >= 0
    sizes = torch.zeros((len(part), int(part.max()) + 2 if part.numel() else 1), dtype=torch.int64, device=part.device)
    sizes.scatter_add_(1, (part + 1), inside.long())
    before = sizes.cumsum(dim=1) - sizes
    # Numbers of later parts are larger, so that one sort orders all parts.
    overall = ranks(part.to(uniform.dtype) * 2 + uniform, inside)
    place = torch.where(inside, overall - before.gather(1, part + 1), part.shape[1])
    return place, sizes.gather(1, part + 1) * inside
