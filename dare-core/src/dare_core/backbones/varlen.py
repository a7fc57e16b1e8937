"""Attention of packed rows by a variable-length flash kernel, which takes no mask.

The packed row is cut into *runs*, stretches of tokens that see the same keys: whole segments where everything is
visible, else the tokens of one block and copy. Each run is one sequence of the kernel. With whole segments the keys
are the packed row itself; with blocks every run's keys are gathered behind each other, which copies about
(length of a segment) / (2 block lengths) rows of keys per token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dare_core.backbones.attention import expect_tokens, sees_block
from dare_core.errors import Problem, UserError

_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Runs:
    """Queries in packed order, and the keys of each run.

    Attributes:
        query_ends: [R+1] int32 cumulative numbers of queries.
        key_ends: [R+1] int32 cumulative numbers of keys.
        longest: most queries and most keys of a run.
        keys: [K] int64 packed places of all runs' keys, one run after the other; None = the packed row.
    """

    query_ends: Tensor
    key_ends: Tensor
    longest: tuple[int, int]
    keys: Tensor | None = None


@dataclass(frozen=True)
class VarlenPlan:
    """One kernel call over all runs.

    Attributes:
        runs: who sees what.
        length: T.
        kernel: ``torch.nn.attention.varlen.varlen_attn``.
    """

    runs: Runs
    length: int
    kernel: Callable[..., Any]

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`dare_core.backbones.attention.AttentionPlan`.

        Raises:
            UserError: the forward does not run in half precision.
        """
        expect_tokens(query, self.length)
        if query.dtype not in _HALF:
            raise UserError(
                Problem(
                    f"'flash' computes in bfloat16 or float16, and this forward is {query.dtype}",
                    path="model.attention",
                    hint="set model.dtype or engine.autocast to bfloat16, or attention to 'sdpa'",
                )
            )
        grouped = key.shape[1] != query.shape[1]
        query, key, value = (t[0].transpose(0, 1).contiguous() for t in (query, key, value))
        if self.runs.keys is not None:
            key, value = key[self.runs.keys], value[self.runs.keys]
        ends, longest = (self.runs.query_ends, self.runs.key_ends), self.runs.longest
        mixed: Tensor = self.kernel(query, key, value, *ends, *longest, scale=scaling, enable_gqa=grouped)
        return mixed[None]


def varlen_plan(
    lengths: Sequence[int], device: torch.device, *, block: Tensor | None = None, noisy: Tensor | None = None
) -> VarlenPlan:
    """See :class:`dare_core.backbones.attention.PlanMaker`."""
    from torch.nn.attention.varlen import varlen_attn

    return VarlenPlan(runs_of(lengths, device, block=block, noisy=noisy), sum(lengths), varlen_attn)


def runs_of(
    lengths: Sequence[int], device: torch.device, *, block: Tensor | None = None, noisy: Tensor | None = None
) -> Runs:
    """The runs of a packed row; arguments as of :class:`dare_core.backbones.attention.PlanMaker`."""
    sizes = torch.tensor([size for size in lengths if size], device=device)
    if block is None:
        ends = _ends(sizes)
        longest = max(lengths, default=0)
        return Runs(ends, ends, (longest, longest))
    segment = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
    copy = torch.zeros_like(block) if noisy is None else noisy.long()
    marks = torch.stack([segment, block, copy])
    first = torch.ones_like(segment, dtype=torch.bool)
    first[1:] = (marks[:, 1:] != marks[:, :-1]).any(dim=0)
    heads = first.nonzero()[:, 0]
    queries = torch.diff(heads, append=heads.new_tensor([len(segment)]))
    copies = () if noisy is None else (noisy[heads][:, None], noisy)
    # [R,T] bool: a run is a whole block of one copy, so this is a block length smaller than [T,T].
    seen = (segment[heads][:, None] == segment) & sees_block(block[heads][:, None], block, *copies)
    keys = seen.sum(dim=1)
    return Runs(_ends(queries), _ends(keys), (int(queries.max()), int(keys.max())), seen.nonzero()[:, 1])


def _ends(sizes: Tensor) -> Tensor:
    return torch.nn.functional.pad(sizes.cumsum(dim=0), (1, 0)).to(torch.int32)
