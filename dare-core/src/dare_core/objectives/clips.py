"""The clipped surrogate of PPO (Schulman et al. 2017, eq. 7), asymmetric and dual-clipped forms."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ClippedSurrogate:
    """A clipped loss, entry by entry, and which branch each entry took (bool, same shape).

    Attributes:
        loss: to be minimised.
        clipped: the clipped branch was taken: the entry has no policy gradient.
        outside: the ratio lies beyond a bound, but the minimum keeps the unclipped branch: the gradient
            pulls the ratio back.
        capped: the dual clip was taken: no policy gradient.
    """

    loss: Tensor
    clipped: Tensor
    outside: Tensor
    capped: Tensor


def clipped_surrogate(
    ratio: Tensor, advantage: Tensor, low: float, high: float, dual_clip: float | None = None
) -> ClippedSurrogate:
    """``max(-A r, -A clip(r, 1 - low, 1 + high))``; with ``dual_clip`` c, at most ``-A c`` where A < 0.

    Args:
        ratio: likelihood ratios, any shape.
        advantage: broadcastable to it.
        low: how far the ratio may fall below 1.
        high: how far it may rise above 1.
        dual_clip: bound c > 1 for negative advantages (Ye et al. 2020, "Mastering complex control in MOBA
            games with deep reinforcement learning", eq. 5); None = off.
    """
    plain = -advantage * ratio
    bounded = -advantage * ratio.clamp(1 - low, 1 + high)
    loss = torch.maximum(plain, bounded)
    capped = torch.zeros_like(loss, dtype=torch.bool)
    if dual_clip is not None:
        cap = (-advantage * dual_clip).expand_as(loss)
        negative = (advantage < 0).expand_as(loss)
        capped = negative & (loss > cap)
        loss = torch.where(negative, torch.minimum(loss, cap), loss)
    return ClippedSurrogate(loss=loss, clipped=bounded > plain, outside=bounded < plain, capped=capped)


def clipped_log_surrogate(log_ratio: Tensor, advantage: Tensor, low: float, high: float) -> ClippedSurrogate:
    """:func:`clipped_surrogate` without dual clip, computed from log ratios.

    The log ratio is bounded above by log(1 + high) where A >= 0 and below by log(1 - low) where A < 0, and then
    exponentiated: the same value and gradient, and no overflow on the clipped side.
    """
    positive = (advantage >= 0).expand_as(log_ratio)
    lowest = math.log(1 - low) if low < 1 else -math.inf
    above, below = log_ratio.clamp(max=math.log(1 + high)), log_ratio.clamp(min=lowest)
    loss = -advantage * torch.where(positive, above, below).exp()
    beyond = torch.where(positive, log_ratio > math.log(1 + high), log_ratio < lowest)
    other = torch.where(positive, log_ratio < lowest, log_ratio > math.log(1 + high))
    counts = (advantage != 0).expand_as(log_ratio)
    return ClippedSurrogate(loss=loss, clipped=beyond & counts, outside=other & counts, capped=torch.zeros_like(beyond))
