"""Attention of packed rows: who attends to whom is a plan, and the library's attention modules ask it.

A transformers model built with ``attn_implementation="dare"`` calls :func:`planned_attention` in every
layer. The *attention plan* travels as a keyword argument of the model's forward
(``attention_plan=...``), so backbones stay the library's own classes. No mask function is registered
under that name: transformers then builds no mask at all.

:class:`SegmentPlan` computes scaled dot-product attention segment by segment over one packed row [1,T]:
segments of equal length are gathered into one batched call, nothing is computed across segments, and a
segment's result does not depend on its neighbours. A plan with a key-value cache is another class with
the same one method.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION = "dare"


class AttentionPlan(Protocol):
    """Decides what attends to what in one forward."""

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output.

        Args:
            module: the calling attention module; ``module.layer_idx`` names the layer (for caches).
            query: [1,heads,T,D] rotated queries of the packed row.
            key: [1,kv_heads,T,D] rotated keys.
            value: [1,kv_heads,T,D].
            scaling: factor of the scores.

        Returns:
            [1,T,heads,D].
        """
        ...


class PlanMaker(Protocol):
    """Turns what packed rows say of themselves into the plan of one implementation."""

    def __call__(
        self, lengths: Sequence[int], device: torch.device, *, block: Tensor | None = None, noisy: Tensor | None = None
    ) -> AttentionPlan:
        """Plan for consecutive segments of a packed row; a token sees only its own segment.

        Args:
            lengths: tokens of each segment, in packed order; zeros are skipped. T in all.
            device: where the plan's tensors live.
            block: [T] int64 block of each token; None = every token sees its whole segment. Given alone, a
                token sees its own and earlier blocks.
            noisy: [T] bool, for the two-copy training layout: see :func:`sees_block`.
        """
        ...


def planned_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    *,
    attention_plan: AttentionPlan | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function behind ``attn_implementation="dare"``.

    Raises:
        ValueError: the forward was called without a plan, or with attention dropout.
    """
    if attention_plan is None:
        raise ValueError("attention 'dare' needs attention_plan=..., given to the model's forward")
    if dropout:
        raise ValueError(f"attention dropout {dropout} is not supported: set it to 0")
    # Families that rotate in float32 hand over wider queries and keys than values.
    query, key = query.to(value.dtype), key.to(value.dtype)
    return attention_plan.attend(module, query, key, value, scaling), None


AttentionInterface.register(ATTENTION, planned_attention)


def expect_tokens(query: Tensor, length: int) -> None:
    """Refuse queries [1,heads,T,D] of another number of tokens than the plan's."""
    if query.shape[2] != length:
        raise ValueError(f"the plan is for {length} packed tokens, the forward has {query.shape[2]}")


@dataclass(frozen=True)
class SegmentGroup:
    """Segments of one length that are computed together.

    Attributes:
        index: [G,S] int64 places of their tokens in the packed row.
        mask: [G,1,S,S] bool, True where a query (third axis) sees a key; None = everything.
    """

    index: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class SegmentPlan:
    """Attention within segments of a packed row, without any cache.

    Attributes:
        groups: every place of the packed row stands in exactly one group.
        length: T.
        restore: [T] int64 where each packed token stands in the groups' results, one after the other; None if
            the groups follow each other in the packed row, so that nothing is gathered.
    """

    groups: tuple[SegmentGroup, ...]
    length: int
    restore: Tensor | None

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`AttentionPlan`."""
        heads, kv_heads = query.shape[1], key.shape[1]
        expect_tokens(query, self.length)
        if kv_heads != heads:
            key, value = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (key, value))
        # [1,heads,T,D] -> [T,heads,D]: tokens first, so that a segment is a run of rows.
        query, key, value = (t[0].transpose(0, 1) for t in (query, key, value))
        if self.restore is None:
            sizes = [group.index.numel() for group in self.groups]
            cut = zip(*(t.split(sizes) for t in (query, key, value)), strict=True)
        else:
            cut = (
                tuple(t.index_select(0, group.index.flatten()) for t in (query, key, value)) for group in self.groups
            )
        pieces = [
            _attend_group(*(t.unflatten(0, group.index.shape) for t in parts), group.mask, scaling).flatten(0, 1)
            for group, parts in zip(self.groups, cut, strict=True)
        ]
        mixed = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return (mixed if self.restore is None else mixed.index_select(0, self.restore))[None]


def _attend_group(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """[G,S,heads,D] each -> [G,S,heads,D]."""
    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return mixed.transpose(1, 2)


def segment_plan(
    lengths: Sequence[int],
    device: torch.device,
    *,
    block: Tensor | None = None,
    noisy: Tensor | None = None,
    window: int | None = None,
) -> SegmentPlan:
    """See :class:`PlanMaker`; ``window`` as of :func:`sees_block`."""
    starts: dict[int, list[int]] = defaultdict(list)
    place = 0
    for size in lengths:
        if size:
            starts[size].append(place)
        place += size
    groups = []
    for size, begin in starts.items():
        index = torch.tensor(begin, device=device)[:, None] + torch.arange(size, device=device)
        groups.append(SegmentGroup(index, None if block is None else _visible(index, block, noisy, window)))
    begins = [at for begin in starts.values() for at in begin]
    in_order = begins == sorted(begins)
    restore = None if in_order else torch.cat([group.index.flatten() for group in groups]).argsort()
    return SegmentPlan(tuple(groups), place, restore)


def _visible(index: Tensor, block: Tensor, noisy: Tensor | None, window: int | None) -> Tensor:
    """[G,1,S,S] bool for segments at ``index`` [G,S]."""
    asks, seen = (index[:, None, :, None], index[:, None, None, :])
    if noisy is None:
        return sees_block(block[asks], block[seen], window=window)
    return sees_block(block[asks], block[seen], noisy[asks], noisy[seen], window=window)


def sees_block(
    query_block: Tensor,
    key_block: Tensor,
    query_noisy: Tensor | None = None,
    key_noisy: Tensor | None = None,
    *,
    window: int | None = None,
) -> Tensor:
    """Whether a query sees a key of its segment, elementwise.

    Without copies it sees its own and earlier blocks. With two copies, a noisy query sees the noisy keys of its
    block and the clean ones of earlier blocks, a clean query the clean ones up to its block.
    (Arriola et al., "Block Diffusion", ICLR 2025, specialised mask.)

    Blocks may be any ranks of :func:`dare_core.diffusion.layouts.ranks`. With a ``window`` W, keys whose rank lies W or
    more below the query's are hidden: where ranks are positions, clean tokens see W tokens with themselves, and a noisy
    block W - 1 clean ones before it.
    """
    if query_noisy is None or key_noisy is None:
        seen = key_block <= query_block
    else:
        clean_past = ~key_noisy & torch.where(query_noisy, key_block < query_block, key_block <= query_block)
        seen = clean_past | (key_noisy & query_noisy & (key_block == query_block))
    return seen if window is None else seen & (key_block > query_block - window)


@dataclass(frozen=True)
class WindowedPlan:
    """Layers with a sliding window (``module.sliding_window``) attend by one plan, all others by another.

    Attributes:
        whole: without a window.
        windowed: with it.
    """

    whole: AttentionPlan
    windowed: AttentionPlan

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`AttentionPlan`."""
        plan = self.windowed if getattr(module, "sliding_window", None) else self.whole
        return plan.attend(module, query, key, value, scaling)


def windowed_segment_plan(
    lengths: Sequence[int],
    device: torch.device,
    *,
    block: Tensor | None = None,
    noisy: Tensor | None = None,
    window: int,
) -> WindowedPlan:
    """See :class:`PlanMaker` and :func:`sees_block`."""
    whole = segment_plan(lengths, device, block=block, noisy=noisy)
    return WindowedPlan(whole, segment_plan(lengths, device, block=block, noisy=noisy, window=window))
