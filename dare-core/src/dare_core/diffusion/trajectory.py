"""What a decoder saw: canvases from commit steps.

A commit step is the index of the denoising forward that committed a token, global over the row, from 0; -1 =
prompt, padding or never committed. Where tokens never change after their commit, commit steps and final tokens
give back the input of every forward.
"""

from __future__ import annotations

import torch
from torch import Tensor


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


def states(tokens: Tensor, commit_step: Tensor, response: Tensor, mask_id: int) -> Tensor:
    """Every canvas: [B,F+1,L], before each of F forwards and after the last one.

    F is the largest commit step plus one; rows that were done earlier repeat their last canvas.
    """
    forwards = int(commit_step.max()) + 1 if commit_step.numel() else 0
    return torch.stack(
        [state_before(tokens, commit_step, response, step, mask_id) for step in range(forwards + 1)], dim=1
    )


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
