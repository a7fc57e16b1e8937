"""What a decoder saw: canvases from commit steps.

A commit step is the index of the denoising forward that committed a token, global over the row, from 0; -1 =
prompt, padding or never committed. Where tokens never change after their commit, commit steps and final tokens
give back the input of every forward; where they do, the recorded edits complete them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_core.types import Edits


def state_before(tokens: Tensor, commit_step: Tensor, response: Tensor, step: Tensor | int, mask_id: int) -> Tensor:
    """The canvas that forward ``step`` saw.

    Args:
        tokens: [B,L] int64 final tokens.
        commit_step: [B,L] int64.
        response: [B,L] bool response positions.
        step: forward from 0, [B] or one for all rows; a row's number of forwards gives its last canvas.
        mask_id: the mask token.

    Returns:
        [B,L] int64: response tokens committed at or after ``step``, and never committed ones, are masked.
    """
    return tokens.masked_fill(hidden_before(commit_step, response, step), mask_id)


def hidden_before(commit_step: Tensor, response: Tensor, step: Tensor | int) -> Tensor:
    """[B,L] bool response positions that forward ``step`` ([B] or one for all) saw as masks."""
    steps = torch.as_tensor(step, device=commit_step.device).expand(len(commit_step))[:, None]
    return response & ((commit_step < 0) | (commit_step >= steps))


def states(
    tokens: Tensor,
    commit_step: Tensor,
    response: Tensor,
    mask_id: int,
    *,
    edits: Edits | None = None,
    forwards: int | None = None,
) -> Tensor:
    """Every canvas: [B,F+1,L], before each of F forwards and after the last one.

    Rows that were done earlier repeat their last canvas.

    Args:
        tokens: [B,L] int64 final tokens.
        commit_step: [B,L] int64.
        response: [B,L] bool response positions.
        mask_id: the mask token.
        edits: replacements of committed tokens, which are taken back step by step.
        forwards: F; None = the largest commit step plus one. Forwards that only edit, or change nothing, come on top.
    """
    if forwards is None:
        forwards = int(commit_step.max()) + 1 if commit_step.numel() else 0
    held, canvases = tokens.clone(), []
    for step in range(forwards, -1, -1):
        if edits is not None:
            now = edits.step == step
            held[edits.row[now], edits.column[now]] = edits.old[now]
        canvases.append(state_before(held, commit_step, response, step, mask_id))
    return torch.stack(canvases[::-1], dim=1)


def last_edit_step(edits: Edits, commit_step: Tensor) -> Tensor:
    """[B,L] int64 the last forward that replaced the token; -1 = none did.

    Args:
        edits: of the rows.
        commit_step: [B,L], for the shape.
    """
    blank = torch.full_like(commit_step, -1).flatten()
    place = edits.row * commit_step.shape[1] + edits.column
    return blank.scatter_reduce(0, place, edits.step, "amax").view_as(commit_step)


def block_local(commit_step: Tensor, blocks: Tensor) -> Tensor:
    """Commit steps counted within each token's block; -1 stays -1.

    Args:
        commit_step: [B,L] int64, blocks committed left to right.
        blocks: [B,L] int64 block of each position, -1 at padding.

    Returns:
        [B,L] int64: step minus the number of forwards that earlier blocks took.
    """
    local = commit_step.clone()
    for block in range(1, int(blocks.max()) + 1 if blocks.numel() else 0):
        earlier = commit_step.masked_fill(blocks >= block, -1).amax(dim=1, keepdim=True) + 1
        local = torch.where((blocks == block) & (commit_step >= 0), commit_step - earlier, local)
    return local


def from_block_local(local_step: Tensor, blocks: Tensor) -> Tensor:
    """The inverse of :func:`block_local`: commit steps counted over the row."""
    total = local_step.clone()
    for block in range(1, int(blocks.max()) + 1 if blocks.numel() else 0):
        earlier = total.masked_fill(blocks >= block, -1).amax(dim=1, keepdim=True) + 1
        total = torch.where((blocks == block) & (local_step >= 0), local_step + earlier, total)
    return total
