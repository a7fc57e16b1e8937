"""Generalised advantage estimation over the steps of a sampled trace (Schulman et al. 2016, arXiv:1506.02438; for
traces of masked tokens: Wang et al. 2025, TraceRL, arXiv:2509.06949).

With step means V*_t of the values and the reward at a row's last step (r*_T = R, else 0)::

    A*_t = r*_t - V*_t + gamma V*_(t+1) + gamma lambda A*_(t+1)          R*_t = r*_t + gamma R*_(t+1)
    A_j  = r*_t - V_j  + gamma V*_(t+1) + gamma lambda A*_(t+1)          R_j  = R*_t        for token j of step t

gamma = lambda = 1 gives R_j = R and A_j = R - V_j.
"""

from __future__ import annotations

import torch
from torch import Tensor


def trace_advantages(
    reward: Tensor,
    value: Tensor,
    mask: Tensor,
    step: Tensor,
    row: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(advantages, returns), both [N,L]; 0 where ``mask`` is False.

    Args:
        reward: [B] of each row.
        value: [N,L] value predictions, constants here.
        mask: [N,L] bool trained tokens.
        step: [N,L] int64 trace step of each token; only its order within a row matters.
        row: [N] int64 row of each line.
        gamma: discount per step.
        lam: lambda, how far advantages look ahead.
    """
    span = int(step[mask].max()) + 1 if bool(mask.any()) else 1
    owner = row[:, None].expand_as(mask)[mask]
    keys, index, counts = torch.unique(owner * span + step[mask], return_inverse=True, return_counts=True)
    means = torch.zeros(len(keys), dtype=value.dtype, device=value.device).index_add(0, index, value[mask]) / counts
    of_row = keys.div(span, rounding_mode="floor")
    last = torch.ones_like(of_row, dtype=torch.bool)
    last[:-1] = of_row[1:] != of_row[:-1]
    gained = torch.where(last, reward[of_row].to(value.dtype), 0.0)
    ahead, returns = torch.zeros_like(means), torch.zeros_like(means)
    following = torch.zeros((3,), dtype=value.dtype, device=value.device)
    for place in range(len(keys) - 1, -1, -1):
        value_next, advantage_next, return_next = following * ~last[place]
        ahead[place] = gained[place] + gamma * value_next + gamma * lam * advantage_next
        returns[place] = gained[place] + gamma * return_next
        following = torch.stack([means[place], ahead[place] - means[place], returns[place]])
    blank = torch.zeros_like(value)
    advantages = blank.masked_scatter(mask, ahead[index] - value[mask])
    return advantages, blank.masked_scatter(mask, returns[index])


def clipped_value_loss(value: Tensor, old: Tensor, target: Tensor, limit: float) -> Tensor:
    """``max((V - R)^2, (V' - R)^2) / 2`` entry by entry, V' = old + clip(V - old, -limit, limit)."""
    bounded = old + (value - old).clamp(-limit, limit)
    return torch.maximum((value - target) ** 2, (bounded - target) ** 2) / 2
