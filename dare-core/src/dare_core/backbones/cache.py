"""Exact key-value cache of block models, behind the attention plan.

Every slot has room for one row in each layer. A forward writes the keys and values it computes behind the cached
ones, attends to both, and then moves the slot's length up to what is final; what lies behind is overwritten by the
next forward. Keys are kept rotated, since a token's position never changes. Rows of a batch may have cached and may
compute different numbers of tokens: those with equal numbers are computed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from dare_core.backbones.attention import sees_block
from dare_core.backbones.packing import Packed, packed_index
from dare_core.diffusion.layouts import block_index, positions, ranks
from dare_core.interfaces import KeyValueCache
from dare_core.types import AttentionLayout


@dataclass
class _Store:
    """Keys and values by layer, each [slots,kv_heads,capacity,D]; made when a layer is first seen."""

    slots: int
    capacity: int
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def extend(self, layer: int, slots: Tensor, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write [G,kv_heads,S,D] behind the first ``start`` tokens; returns [G,kv_heads,start + S,D] of both."""
        if layer not in self.layers:
            shape = (self.slots, key.shape[1], self.capacity, key.shape[3])
            self.layers[layer] = (key.new_empty(shape), value.new_empty(shape))
        end = start + key.shape[2]
        read = []
        for kept, fresh in zip(self.layers[layer], (key, value), strict=True):
            kept[slots, :, start:end] = fresh
            read.append(kept[:, :, :end].index_select(0, slots))
        return read[0], read[1]


@dataclass(frozen=True)
class CachedGroup:
    """Rows that have cached and compute equal numbers of tokens.

    Attributes:
        index: [G,S] int64 places of the computed tokens in the packed row.
        slots: [G] int64.
        start: tokens cached.
        mask: [G,1,S,start + S] bool, True where a query sees a key; None = everything.
        near: likewise for layers with a sliding window; None = as ``mask``.
    """

    index: Tensor
    slots: Tensor
    start: int
    mask: Tensor | None
    near: Tensor | None = None


@dataclass(frozen=True)
class CachedPlan:
    """Attention of packed row tails to their cached beginnings and to themselves."""

    store: _Store
    groups: tuple[CachedGroup, ...]
    length: int
    restore: Tensor

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`dare_core.backbones.attention.AttentionPlan`."""
        heads, kv_heads, width = query.shape[1], key.shape[1], query.shape[3]
        if query.shape[2] != self.length:
            raise ValueError(f"the plan is for {self.length} packed tokens, the forward has {query.shape[2]}")
        repeat = heads // kv_heads
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        windowed = bool(getattr(module, "sliding_window", None))
        query, key, value = (t[0].transpose(0, 1) for t in (query, key, value))
        pieces = []
        for group in self.groups:
            rows, size = group.index.shape
            fresh = (t[group.index].transpose(1, 2) for t in (key, value))
            keys, values = self.store.extend(layer, group.slots, group.start, *fresh)
            # The query heads of one key head stand side by side: they become further queries of that head.
            asked = query[group.index].transpose(1, 2).reshape(rows, kv_heads, repeat * size, width)
            mask = group.near if windowed and group.near is not None else group.mask
            mask = None if mask is None else mask.repeat(1, 1, repeat, 1)
            mixed = scaled_dot_product_attention(asked, keys, values, attn_mask=mask, scale=scaling)
            pieces.append(mixed.reshape(rows, heads, size, -1).transpose(1, 2).flatten(0, 1))
        return torch.cat(pieces)[self.restore][None]


class SegmentCache(KeyValueCache):
    """The cache of an adapter whose module asks attention plans.

    Args:
        slots: rows it has room for.
        capacity: tokens per row.
        states: runs the backbone on a packed row and gives the states [M,H] that are read.
        head: turns states [M,H] into logits [M,V].
        window: of layers with a sliding window, see :func:`dare_core.backbones.attention.sees_block`; None = none has.
    """

    def __init__(
        self,
        slots: int,
        capacity: int,
        states: Callable[[Packed], Tensor],
        head: Callable[[Tensor], Tensor],
        *,
        window: int | None = None,
    ) -> None:
        self._store = _Store(slots, capacity)
        self._lengths = [0] * slots
        self._states, self._head, self._window = states, head, window

    @property
    def lengths(self) -> Sequence[int]:
        """See the interface."""
        return tuple(self._lengths)

    def logits(
        self,
        tokens: Tensor,
        valid: Tensor,
        where: Tensor,
        *,
        layout: AttentionLayout,
        prompt_length: Tensor,
        slots: Tensor,
        keep: Tensor,
        condition: Tensor | None = None,
    ) -> Tensor:
        """See the interface.

        Raises:
            ValueError: a position to score is cached, or a row is longer than the cache's capacity.
        """
        place = positions(valid)
        noisy = place >= keep[:, None]
        as_noisy, as_clean = ranks(valid, block_index(valid, prompt_length, layout), layout)
        rank = torch.where(noisy, as_noisy, as_clean).where(valid, -1)
        used = slots.tolist()
        cached = [self._lengths[slot] for slot in used]
        tail = valid & (place >= torch.tensor(cached, device=place.device)[:, None])
        last = rank.amax(dim=1)
        first = rank.where(tail, last[:, None]).amin(dim=1)
        sizes, several, final = torch.stack([tail.sum(dim=1), (first < last).long(), keep]).tolist()
        if max((start + size for start, size in zip(cached, sizes, strict=True)), default=0) > self._store.capacity:
            raise ValueError(f"a row has more tokens than the {self._store.capacity} that the cache has room for")
        plan = self._plan(used, cached, sizes, several, rank[tail])
        packed = Packed(tokens[tail], place[tail], plan, packed_index(tail, where), noisy[tail], condition)
        states = self._states(packed)
        for slot, length in zip(used, final, strict=True):
            self._lengths[slot] = length
        return self._head(states)

    def _plan(
        self, used: list[int], cached: list[int], sizes: list[int], several: list[int], rank: Tensor
    ) -> CachedPlan:
        """Rows grouped by tokens cached, tokens computed, and whether these are of one rank."""
        members: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        begin = 0
        for slot, start, size, mixed in zip(used, cached, sizes, several, strict=True):
            if size:
                members[start, size, mixed].append((slot, begin))
            begin += size
        groups = []
        for (start, size, mixed), rows in members.items():
            places = torch.tensor([at for _, at in rows], device=rank.device)
            index = places[:, None] + torch.arange(size, device=rank.device)
            mask = _seen(rank[index], start) if mixed else None
            near = None if self._window is None else _seen(rank[index], start, self._window)
            chosen = torch.tensor([slot for slot, _ in rows], device=rank.device)
            groups.append(CachedGroup(index, chosen, start, mask, near))
        order = [group.index.flatten() for group in groups]
        restore = torch.cat(order).argsort() if order else torch.zeros(0, dtype=torch.int64, device=rank.device)
        return CachedPlan(self._store, tuple(groups), begin, restore)

    def copy(self, source: int, targets: Sequence[int]) -> None:
        """See the interface."""
        length = self._lengths[source]
        for kept in (tensor for pair in self._store.layers.values() for tensor in pair):
            kept[list(targets), :, :length] = kept[source, :, :length]
        for target in targets:
            self._lengths[target] = length

    def clear(self, slots: Sequence[int], length: int = 0) -> None:
        """See the interface."""
        for slot in slots:
            self._lengths[slot] = min(length, self._lengths[slot])


def _seen(rank: Tensor, start: int, window: int | None = None) -> Tensor:
    """[G,1,S,start + S] bool: everything cached, and of the computed tokens those up to the query's rank [G,S].

    With a window, ranks are positions; what is cached stands at 0 to ``start - 1``.
    """
    query = rank[:, :, None]
    seen = sees_block(query, rank[:, None, :], window=window)
    if window is None:
        earlier = torch.ones(1, 1, 1, device=rank.device, dtype=torch.bool).expand(*seen.shape[:2], start)
    else:
        earlier = torch.arange(start, device=rank.device) > query - window
    return torch.cat([earlier, seen], dim=2)[:, None]
