"""Rows with padding <-> one packed row without.

All valid tokens of a micro-batch stand in one row [T]; padding is never computed, wherever it stood.
Positions count valid tokens from 0 within each row. Scored places are given by packed index, so that the
output head runs there only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.backbones.attention import AttentionPlan, PlanMaker, segment_plan
from dare_core.diffusion.layouts import block_index, positions, ranks
from dare_core.types import AttentionLayout


@dataclass(frozen=True)
class Packed:
    """One packed row.

    Attributes:
        tokens: [T] int64.
        positions: [T] int64 position within the row it came from.
        plan: who attends to whom.
        read: [M] int64 packed index whose hidden state predicts each scored token, in row-major order.
        noisy: [T] bool tokens that are being denoised, where finished ones are computed differently; else None.
        condition: [M,H] what a self-conditioned model sees of its last guess at ``read``; None = nothing.
    """

    tokens: Tensor
    positions: Tensor
    plan: AttentionPlan
    read: Tensor
    noisy: Tensor | None = None
    condition: Tensor | None = None


def pack_rows(
    tokens: Tensor,
    valid: Tensor,
    where: Tensor,
    layout: AttentionLayout,
    prompt_length: Tensor,
    *,
    shift: int = 0,
    make_plan: PlanMaker = segment_plan,
) -> Packed:
    """Pack rows as they stand: with a block layout, earlier blocks are visible with their present tokens.

    Args:
        tokens: [B,L] int64.
        valid: [B,L] bool.
        where: [B,L] bool positions to read, a subset of ``valid``; M in all.
        layout: how positions attend.
        prompt_length: [B].
        shift: 0 = a hidden state predicts its own token; 1 = it predicts the row's next token, and a row's
            first token, which nothing predicts, reads its own state as filler.
        make_plan: of the attention implementation.

    Raises:
        ValueError: ``where`` marks positions that are not valid.
    """
    place = positions(valid)
    block = block_index(valid, prompt_length, layout)[valid] if layout.kind == "block" else None
    plan = make_plan(valid.sum(dim=1).tolist(), tokens.device, block=block)
    read = packed_index(valid, where)
    if shift:
        read = torch.where(place[where] > 0, read - shift, read)
    return Packed(tokens[valid], place[valid], plan, read)


def pack_noisy_clean(
    noisy: Tensor,
    clean: Tensor,
    valid: Tensor,
    where: Tensor,
    layout: AttentionLayout,
    prompt_length: Tensor,
    *,
    make_plan: PlanMaker = segment_plan,
    condition: Tensor | None = None,
) -> Packed:
    """Pack the two-copy layout [noisy | clean] of block diffusion training, each copy with positions from 0.

    Noisy blocks without a scored position, and clean blocks that no scored block sees, change no score and
    are left out.

    Args:
        noisy: [B,L] int64 corrupted tokens, read at ``where``.
        clean: [B,L] int64 tokens that later blocks see.
        valid: [B,L] bool.
        where: [B,L] bool positions to read, a subset of ``valid``; M in all.
        layout: a block layout.
        prompt_length: [B].
        make_plan: of the attention implementation.
        condition: see :class:`Packed`.
    """
    place = positions(valid)
    block = block_index(valid, prompt_length, layout)
    scored_block = block.where(where, -1)
    # Column 0 collects what is not scored (block -1), so that it marks no block.
    has_scored = torch.zeros((len(block), noisy.shape[1] + 1), dtype=torch.bool, device=block.device)
    has_scored.scatter_(1, scored_block + 1, True)
    keep_noisy = valid & has_scored.gather(1, block + 1)
    keep_clean = valid & (block < scored_block.amax(dim=1, keepdim=True))
    keep = torch.cat([keep_noisy, keep_clean], dim=1)
    is_noisy = torch.cat([torch.ones_like(valid), torch.zeros_like(valid)], dim=1)[keep]
    rank = torch.cat(ranks(valid, block, layout), dim=1)[keep]
    plan = make_plan(keep.sum(dim=1).tolist(), noisy.device, block=rank, noisy=is_noisy)
    read = packed_index(keep, torch.cat([where, torch.zeros_like(where)], dim=1))
    tokens, places = torch.cat([noisy, clean], dim=1)[keep], torch.cat([place, place], dim=1)[keep]
    return Packed(tokens, places, plan, read, is_noisy, condition)


def packed_index(kept: Tensor, where: Tensor) -> Tensor:
    """[M] packed index of the tokens at ``where``."""
    if bool((where & ~kept).any()):
        raise ValueError("positions to read must be valid")
    return (kept.flatten().long().cumsum(dim=0) - 1).view(kept.shape)[where]
