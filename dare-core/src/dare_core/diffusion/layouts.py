"""Block layouts: which block a position belongs to, and which positions it sees."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_core.types import AttentionLayout


def positions(valid: Tensor) -> Tensor:
    """[B,L] int64 position of each token, counted over ``valid`` [B,L] bool tokens from 0; 0 at padding."""
    return (valid.long().cumsum(dim=1) - 1).clamp(min=0) * valid


def block_index(valid: Tensor, prompt_length: Tensor, layout: AttentionLayout) -> Tensor:
    """Block of each position, in order of decoding.

    Args:
        valid: [B,L] bool positions that exist; padding may stand anywhere.
        prompt_length: [B] int64 valid prompt tokens; the prompt is the first ``prompt_length`` valid positions.
        layout: ``full`` = everything is block 0; ``block`` with origin ``global`` = position // block_length;
            with origin ``response`` the prompt is cut into blocks of its own, and the response starts a new one;
            with origin ``prompt-end`` so too, but the prompt's last block is whole and its first one may be short.

    Returns:
        [B,L] int64; -1 at padding.
    """
    position = positions(valid)
    if layout.kind == "full":
        index = position * 0
    elif layout.origin == "global":
        index = position // _length(layout)
    else:
        size, start = _length(layout), prompt_length[:, None]
        in_prompt = position < start
        prompt_blocks = -(-start // size)
        index = prompt_blocks + (position - start).div(size, rounding_mode="floor")
        if layout.origin == "response":
            index = (position // size).where(in_prompt, index)
    return index.where(valid, -1)


def _length(layout: AttentionLayout) -> int:
    if layout.block_length is None:
        raise ValueError("a block layout without block_length")
    return layout.block_length


def ranks(valid: Tensor, block: Tensor, layout: AttentionLayout) -> tuple[Tensor, Tensor]:
    """What tokens are compared by to tell who sees whom, as noisy and as clean tokens.

    Clean tokens see clean ones of their own and lower ranks, noisy tokens clean ones of lower ranks and noisy ones of
    their own. Where finished blocks attend by block both ranks are the block; where they attend causally a clean
    token's rank is its position and a noisy one's the position at which its block begins.

    Args:
        valid: [B,L] bool.
        block: [B,L] int64 from :func:`block_index`.
        layout: what ``block`` was made for.

    Returns:
        Two [B,L] int64, of meaning at valid positions.
    """
    if layout.finished == "block":
        return block, block
    place = positions(valid)
    far = torch.full((len(block), block.shape[1] + 1), block.shape[1], dtype=torch.int64, device=block.device)
    # Column 0 collects padding, whose block is -1.
    first = far.scatter_reduce(1, block + 1, place, "amin")
    return first.gather(1, block + 1), place


def visible(blocks: Tensor) -> Tensor:
    """[B,L,L] bool: does the query (second axis) see the key (third axis): own and earlier blocks, no padding.

    Args:
        blocks: [B,L] int64 from :func:`block_index`.
    """
    query, key = blocks[:, :, None], blocks[:, None, :]
    return (key >= 0) & (query >= 0) & (key <= query)
