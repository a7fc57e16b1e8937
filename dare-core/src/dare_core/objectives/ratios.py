"""Likelihood ratios between the live and the old policy, from log-likelihood estimates in nats."""

from __future__ import annotations

import torch
from torch import Tensor


def log_ratio(live: Tensor, old: Tensor, limit: float | None = None) -> Tensor:
    """``live - old``, clamped to [-limit, limit] if given (beyond it the gradient is 0)."""
    difference = live - old
    return difference if limit is None else difference.clamp(-limit, limit)


def token_ratio(live: Tensor, old: Tensor, limit: float | None = None) -> Tensor:
    """``exp(live - old)`` entry by entry: r_j = pi(y_j) / pi_old(y_j). Schulman et al. 2017, eq. 6."""
    return log_ratio(live, old, limit).exp()


def sequence_ratio(live: Tensor, old: Tensor, length: Tensor | float = 1.0) -> Tensor:
    """``exp((live - old) / length)`` of sequence estimates [B]; ``length`` in tokens, 1 = not normalised."""
    return ((live - old) / length).exp()


def linear_ratio(difference: Tensor, advantage: Tensor) -> Tensor:
    """``1 + d`` where A > 0, else ``exp(d)``, for d = live - old: bounds of exp(mean d) that are sums over draws.

    exp(x) >= 1 + x, and exp(mean d) <= mean exp(d), so -A times the mean of these ratios is at least -A exp(mean d),
    with the same value and gradient at d = 0. BGPO, arXiv:2510.11683, section 3.

    Args:
        difference: per draw, any shape.
        advantage: broadcastable to it.
    """
    positive = (advantage > 0).expand_as(difference)
    return torch.where(positive, 1 + difference, torch.where(positive, 0.0, difference).exp())
