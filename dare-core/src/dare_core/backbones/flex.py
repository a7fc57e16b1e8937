"""Attention of packed rows by torch's flex attention: one call over the whole row, block by block of its mask.

On a GPU the kernel is compiled and skips what nobody sees. On the CPU torch computes the whole matrix and has no
backward pass, which serves comparisons with the other implementations and no training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from dare_core.backbones.attention import expect_tokens, sees_block
from dare_core.errors import Problem, UserError


@dataclass(frozen=True)
class FlexPlan:
    """A block mask over one packed row.

    Attributes:
        mask: [T,T] in torch's block-sparse form.
        length: T.
    """

    mask: BlockMask
    length: int

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`dare_core.backbones.attention.AttentionPlan`.

        Raises:
            UserError: gradients are asked for on the CPU.
        """
        expect_tokens(query, self.length)
        on_cpu = query.device.type == "cpu"
        if on_cpu and torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
            raise UserError(
                Problem("'flex' has no gradient on the CPU", path="model.attention", hint="train there with 'sdpa'")
            )
        grouped = key.shape[1] != query.shape[1]
        mixed: Tensor = _kernel(not on_cpu)(query, key, value, block_mask=self.mask, scale=scaling, enable_gqa=grouped)
        return mixed.transpose(1, 2)


def flex_plan(
    lengths: Sequence[int], device: torch.device, *, block: Tensor | None = None, noisy: Tensor | None = None
) -> FlexPlan:
    """See :class:`dare_core.backbones.attention.PlanMaker`."""
    sizes = torch.tensor(lengths, device=device)
    total = sum(lengths)
    segment = torch.arange(len(lengths), device=device).repeat_interleave(sizes, output_size=total)

    def sees(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        together = segment[query] == segment[key]
        if block is None:
            return together
        copies = () if noisy is None else (noisy[query], noisy[key])
        return together & sees_block(block[query], block[key], *copies)

    # Compiled, the mask is made tile by tile and [T,T] never exists.
    mask = create_block_mask(sees, None, None, total, total, device=device, _compile=device.type == "cuda")
    return FlexPlan(mask, total)


@cache
def _kernel(compiled: bool) -> Callable[..., Any]:
    if compiled:
        return torch.compile(flex_attention, dynamic=True)
    return flex_attention
