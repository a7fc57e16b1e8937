"""Which denoising step a scored token belongs to, in the views of a replay.

In a full layout a view is one step of a row. In a block layout it shows the same local step of every block, so a
token's step is that of its block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.diffusion.layouts import block_index, positions
from dare_core.types import Views


@dataclass(frozen=True)
class Transitions:
    """Steps of the entries of N views, [N,L] int64; without meaning at padding and in prompts.

    Attributes:
        step: the same number for the same step of the same block, blocks counted from the response's first one.
        transition: the same number for tokens of one row, block and step.
    """

    step: Tensor
    transition: Tensor

    @classmethod
    def of(cls, views: Views) -> Transitions:
        """Of replayed views, whose ``draw`` counts steps within a row (or block)."""
        blocks = block_index(views.valid, views.prompt_length, views.layout)
        first = views.valid & (positions(views.valid) == views.prompt_length[:, None])
        relative = blocks - torch.where(first, blocks, 0).sum(dim=1, keepdim=True)
        draws = int(views.draw.max()) + 1 if len(views) else 1
        step = relative.clamp(min=0) * draws + views.draw[:, None]
        width = int(step.max()) + 1 if step.numel() else 1
        return cls(step=step, transition=views.row[:, None] * width + step)
