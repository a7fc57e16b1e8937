"""Passes over a vocabulary: the best token, sums and draws of [M,V] numbers, in their own dtype.

A row is cut into segments. A maximum or a sum over segments of a cache line's multiple runs at the speed of memory,
which an argmax or a running sum over the whole row does not; only one segment per row is then looked at closely.
Sums of segments are added up in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SEGMENT = 512


def best_token(logits: Tensor) -> Tensor:
    """[M] int64 largest entry of each row of [M,V]; equal ones: the lowest."""
    best = _reduced(logits, "max")
    segment = best.argmax(dim=1)
    inside = _segment(logits, segment, -torch.inf)
    return segment * _SEGMENT + inside.argmax(dim=1)


def row_sum(mass: Tensor) -> Tensor:
    """[M] float64 sums of [M,V]."""
    return _reduced(mass, "sum").sum(dim=1, dtype=torch.float64)


def draw_by_mass(mass: Tensor, uniform: Tensor) -> Tensor:
    """The first token whose running sum of mass exceeds its share ``uniform`` of the whole.

    Args:
        mass: [M,V], not negative, with a positive sum per row.
        uniform: [M] float64 in (0, 1).

    Returns:
        [M] int64 tokens of positive mass.
    """
    segment, share = _first_beyond(_reduced(mass, "sum"), uniform)
    inside, _ = _first_beyond(_segment(mass, segment, 0.0), share)
    return segment * _SEGMENT + inside


def _first_beyond(mass: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """[M] entry of [M,S] at which the running sum passes ``share`` [M] of the whole, and the share within it."""
    running = mass.to(torch.float64).cumsum(dim=1)
    whole = running[:, -1:]
    # Below the whole, whatever rounding does: else an entry without mass could be found.
    target = (share[:, None] * whole).minimum(torch.nextafter(whole, torch.zeros_like(whole)))
    entry = torch.searchsorted(running, target, right=True).clamp(max=mass.shape[1] - 1)
    own = mass.gather(1, entry).to(torch.float64)
    inside = 1 - (running.gather(1, entry) - target) / own
    return entry[:, 0], inside[:, 0].clamp(0, 1)


def _reduced(values: Tensor, how: str) -> Tensor:
    """[M,S] maximum or sum of each segment of [M,V]; the last one may be short."""
    whole = values.shape[1] // _SEGMENT * _SEGMENT
    parts = []
    if whole:
        segments = values[:, :whole].unflatten(1, (-1, _SEGMENT))
        parts.append(segments.amax(dim=2) if how == "max" else segments.sum(dim=2))
    if whole < values.shape[1]:
        tail = values[:, whole:]
        parts.append(tail.amax(dim=1, keepdim=True) if how == "max" else tail.sum(dim=1, keepdim=True))
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def _segment(values: Tensor, segment: Tensor, beyond: float) -> Tensor:
    """[M,512] segment [M] of each row of [M,V]; ``beyond`` where the row has ended."""
    width = values.shape[1]
    column = segment[:, None] * _SEGMENT + torch.arange(min(_SEGMENT, width), device=values.device)
    return values.gather(1, column.clamp(max=width - 1)).masked_fill(column >= width, beyond)
