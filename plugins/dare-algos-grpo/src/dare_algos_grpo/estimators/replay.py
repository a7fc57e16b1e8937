"""Views that replay an order: which tokens came when, step by step.

In a full layout one view shows one step of a row. In a block layout a scored copy sees earlier blocks clean, so that
one view shows the same step of all blocks at once, counted within each block: a row then needs as many views as its
longest block has steps, and every log-probability is that of the step-by-step replay.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dare_core.diffusion.corruption import build_views
from dare_core.diffusion.layouts import block_index
from dare_core.diffusion.trajectory import hidden_before
from dare_core.interfaces import PlanContext
from dare_core.types import Rows, Views


def replay_views(
    rows: Rows,
    step: Tensor,
    context: PlanContext,
    *,
    merge: int = 1,
    scored: Tensor | None = None,
    temperature: float = 1.0,
) -> Views:
    """Views ordered by (row, draw); ``draw`` counts a row's (or block's) distinct steps from 0, divided by ``merge``.

    Args:
        rows: B clean rows.
        step: [B,L] int64 when each response token came; only its order within a row (or block) matters. Tokens
            with -1 stay hidden in every view and are never scored.
        context: ids and layout.
        merge: consecutive steps scored by one view, in the state before the first of them.
        scored: [B,L] bool tokens to score; default all. Views without one are left out.
        temperature: logits are divided by it.
    """
    blocks = block_index(rows.valid, rows.prompt_length, context.layout)
    rank = ranks(torch.where(rows.response, step, -1), blocks)
    draw = torch.where(rank >= 0, rank.div(merge, rounding_mode="floor"), -1)
    wanted = (draw >= 0) if scored is None else (draw >= 0) & scored
    index = torch.arange(len(rows), device=step.device)[:, None].expand_as(step)
    width = int(draw.max()) + 1 if draw.numel() else 1
    pairs = torch.unique(index[wanted] * width + draw[wanted])
    row, shown = pairs.div(width, rounding_mode="floor"), pairs % width
    of_view = draw[row]
    views = build_views(
        rows,
        hidden_before(of_view, rows.response[row], shown),
        mask_id=context.facts.mask_id,
        layout=context.layout,
        row=row,
        draw=shown,
        scored=(of_view == shown[:, None]) & wanted[row],
    )
    return replace(views, temperature=temperature)


def ranks(step: Tensor, blocks: Tensor) -> Tensor:
    """[B,L] int64: how many distinct earlier steps a token's block has in its row; -1 where ``step`` [B,L] is negative.

    Args:
        step: [B,L] int64.
        blocks: [B,L] int64 block of each position; all 0 in a full layout.
    """
    counted = step >= 0
    index = torch.arange(len(step), device=step.device)[:, None].expand_as(step)
    block_count = int(blocks.max()) + 1 if blocks.numel() else 1
    step_count = int(step.max()) + 1 if step.numel() else 1
    cell = (index * block_count + blocks)[counted]
    distinct, place = torch.unique(cell * step_count + step[counted], return_inverse=True)
    first = torch.searchsorted(distinct.div(step_count, rounding_mode="floor"), cell)
    return torch.full_like(step, -1).masked_scatter(counted, place - first)
