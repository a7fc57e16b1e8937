"""Schedules: how many tokens commit at a step, and how much is masked at a time.

Transfer: a block of n masked tokens is committed over S steps as evenly as whole numbers allow, the remainder at
the first steps (LLaDA, arXiv 2502.09992). Dream (arXiv 2508.15487) lets time run from 1 to eps and commits the whole
part of n (1 - s/t) of the n tokens that are still masked, the rest at the last step; early steps may commit nothing.
CJ-GRPO's ascending step size (arXiv 2509.23924) commits 2^i tokens at step i of floor(log2 n), the rest at the last.
Noise: alpha(t) is the probability that a token is still clean at time t
in [0, 1]; a token's weight in the continuous-time ELBO is -alpha'(t) / (1 - alpha(t)) (MDLM, arXiv 2406.07524),
which for the linear schedule is 1 / t.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from dare_core.diffusion.rules import Rule
from dare_core.types import DecodingSettings

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


def linear_time_quota(open_count: Tensor, steps: int, step: Tensor, eps: float) -> Tensor:
    """Dream's n (1 - s/t), not rounded; all that is left at the last step and beyond.

    Computed in float32, as published: rounding decides whether a step's whole part is one token more.

    Args:
        open_count: [N] int64 tokens that are masked.
        steps: steps planned.
        step: [N] int64 from 0.
        eps: time after the last step.

    Returns:
        [N] float64.
    """
    time = torch.linspace(1, eps, steps + 1, dtype=torch.float32, device=open_count.device)
    rate = 1 - time[1:] / time[:-1]
    rate[-1] = 1.0
    return (open_count.to(torch.float32) * rate[step.clamp(max=steps - 1)]).to(torch.float64)


def doubling_quota(open_count: Tensor, steps: int, step: Tensor) -> Tensor:
    """[N] int64: 2^i tokens at ``step`` i [N] of ``steps``, all that is left [N] at the last step and beyond."""
    return torch.where(step < steps - 1, 2 ** step.clamp(max=62), open_count)


def doubling_blocks(length: int, blocks: int) -> list[tuple[int, int]]:
    """(positions, first step) of the blocks of CJ-GRPO's ascending schedule, S = floor(log2 ``length``) steps in all.

    The last block takes the last step and 2^(S-1) + 1 + (length - 2^S) positions, each block before it one step and as
    many positions as that step commits, the first block the remaining steps and positions.

    Raises:
        ValueError: there are more blocks than steps.
    """
    steps = length.bit_length() - 1
    if not 1 <= blocks <= max(1, steps):
        raise ValueError(f"{length} tokens in {steps} steps cannot be cut into {blocks} blocks")
    if blocks == 1:
        return [(length, 0)]
    last = 2 ** (steps - 1) + 1 + length - 2**steps
    between = [2 ** (steps - back) for back in range(blocks - 1, 1, -1)]
    sizes = [length - last - sum(between), *between, last]
    return [(size, 0 if block == 0 else steps - blocks + block) for block, size in enumerate(sizes)]


def end_factor(floor: float, settings: DecodingSettings, forward: Tensor) -> Tensor:
    """[M] float64 factor on the probability of proposed end tokens, growing over a response's forwards (EOSER).

    ``floor + (1 - floor) i / (S - 1)`` at forward i of S; with the ``doubling`` schedule
    ``floor + (1 - floor) (2^(i+1) - 1) / 2^S``, within each block.

    Args:
        floor: factor at the start; 1 = no change.
        settings: the protocol; S is the number of forwards that it plans.
        forward: [M] int64 from 0.
    """
    planned = settings.steps_per_block
    if settings.schedule == "doubling":
        share = (2.0 ** (forward % planned + 1).to(torch.float64) - 1) / 2.0**planned
    else:
        total = planned * -(-settings.new_tokens // settings.block_length)
        share = (forward.to(torch.float64) / max(1, total - 1)).clamp(max=1.0)
    return floor + (1 - floor) * share


def commit_quota(settings: DecodingSettings, rule: Rule, size: Tensor, open_count: Tensor, step: Tensor) -> Tensor:
    """How many tokens a step of a block should commit.

    Args:
        settings: the protocol.
        rule: the selection rule, which may have a pace of its own.
        size: [N] int64 masked tokens at the block's start.
        open_count: [N] int64 tokens of the block that are masked.
        step: [N] int64 forwards that the block has had.

    Returns:
        [N] float64; whole numbers unless the schedule is ``linear-time``, and then below 1 at idle steps.
    """
    planned = settings.steps_per_block
    if rule.pace == "fixed":
        return torch.full_like(size, rule.at_least, dtype=torch.float64)
    if rule.pace == "carry":
        steps = size.clamp(min=1, max=planned)
        done = (step + 1).clamp(max=steps)
        by_now = done * (size // steps) + done.minimum(size % steps)
        return (by_now - (size - open_count)).clamp(min=1).to(torch.float64)
    if settings.schedule == "linear-time":
        return linear_time_quota(open_count, planned, step, settings.schedule_eps)
    if settings.schedule == "doubling":
        return doubling_quota(open_count, planned, step).clamp(min=1).to(torch.float64)
    if settings.schedule == "even-block":
        size = torch.full_like(size, settings.block_length)
    return step_quota(size, size.clamp(max=planned), step).clamp(min=1).to(torch.float64)


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
