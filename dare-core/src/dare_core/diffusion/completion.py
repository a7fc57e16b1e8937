"""Where a response ends."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def completion_mask(tokens: Tensor, response: Tensor, eos_ids: Sequence[int]) -> Tensor:
    """[B,L] bool response positions up to and including the first end token; all of them without one.

    A response in several runs ends in each of them on its own.

    Args:
        tokens: [B,L] int64.
        response: [B,L] bool response positions; end tokens elsewhere do not count.
        eos_ids: tokens that end a response.
    """
    ends = torch.isin(tokens, torch.tensor(list(eos_ids), dtype=tokens.dtype, device=tokens.device)) & response
    before = ends.cumsum(dim=1) - ends.long()
    earlier = torch.cat([torch.zeros_like(response[:, :1]), response[:, :-1]], dim=1)
    # End tokens so far where the present run began: counts do not fall, so a running maximum carries them on.
    begun = (before * (response & ~earlier)).cummax(dim=1).values
    return response & (before == begun)
