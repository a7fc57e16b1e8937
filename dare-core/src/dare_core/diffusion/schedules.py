"""Schedules: how many tokens commit at a step, and how much is masked at a time.

Transfer: a block of n masked tokens is committed over S steps as evenly as whole numbers allow, the remainder at
the first steps (LLaDA, arXiv 2502.09992). Noise: alpha(t) is the probability that a token is still clean at time t
in [0, 1]; a token's weight in the continuous-time ELBO is -alpha'(t) / (1 - alpha(t)) (MDLM, arXiv 2406.07524),
which for the linear schedule is 1 / t.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

NoiseSchedule = Literal["linear", "cosine"]


def step_quota(count: Tensor, steps: Tensor | int, step: Tensor | int) -> Tensor:
    """Tokens to commit at ``step``.

    Args:
        count: [N] int64 masked tokens at the block's start.
        steps: steps planned, [N] or one for all.
        step: index of the step, from 0; [N] or one for all. Steps beyond the plan get 0.
    """
    steps = torch.as_tensor(steps, device=count.device)
    step = torch.as_tensor(step, device=count.device)
    quota = count // steps + (step < count % steps)
    return quota * (step < steps)


def transfer_schedule(count: Tensor, steps: int) -> Tensor:
    """[N,S] int64 tokens to commit at each of ``steps`` steps, for [N] counts of masked tokens."""
    return step_quota(count[:, None], steps, torch.arange(steps, device=count.device))


def alpha(schedule: NoiseSchedule, time: Tensor) -> Tensor:
    """Probability that a token is clean at ``time`` (any shape, in [0, 1]): 1 at 0, 0 at 1."""
    if schedule == "linear":
        return 1 - time
    return 1 - torch.cos(math.pi / 2 * (1 - time))


def alpha_slope(schedule: NoiseSchedule, time: Tensor) -> Tensor:
    """Derivative of :func:`alpha` with respect to time; negative."""
    if schedule == "linear":
        return -torch.ones_like(time)
    return -math.pi / 2 * torch.sin(math.pi / 2 * (1 - time))


def elbo_weight(schedule: NoiseSchedule, time: Tensor, *, offset: float = 0.0) -> Tensor:
    """Weight -alpha' / (1 - alpha + offset) of a masked token. Published trainers add ``offset`` 1e-6."""
    return -alpha_slope(schedule, time) / (1 - alpha(schedule, time) + offset)
