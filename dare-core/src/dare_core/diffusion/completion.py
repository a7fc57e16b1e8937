"""Where a response ends."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def completion_mask(tokens: Tensor, response: Tensor, eos_ids: Sequence[int]) -> Tensor:
    """[B,L] bool response positions up to and including the first end token; all of them without one.

    Args:
        tokens: [B,L] int64.
        response: [B,L] bool response positions; end tokens elsewhere do not count.
        eos_ids: tokens that end a response.
    """
    ends = torch.isin(tokens, torch.tensor(list(eos_ids), dtype=tokens.dtype, device=tokens.device)) & response
    ended_before = ends.cumsum(dim=1) - ends.long() > 0
    return response & ~ended_before
