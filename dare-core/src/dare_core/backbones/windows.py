"""Approximate key-value cache of models that see whole rows, behind the attention plan.

Every slot keeps the keys and values of one whole row in each layer. A forward writes those of the columns it
computes over the old ones, and its queries see all of the row: fresh where computed, stale elsewhere (Wu et al.,
"Fast-dLLM", arXiv:2505.22618). Keys are kept rotated, since a token's position is its column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from dare_core.backbones.packing import Packed
from dare_core.diffusion.layouts import positions
from dare_core.interfaces import WindowCache


@dataclass
class _Store:
    """Keys and values by layer, each [slots,capacity,kv_heads,D]; made when a layer is first seen."""

    slots: int
    capacity: int
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def write(self, layer: int, places: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put [T,kv_heads,D] of both at ``places`` [T] of the flattened slots; returns the layer's whole tensors."""
        if layer not in self.layers:
            shape = (self.slots, self.capacity, *key.shape[1:])
            self.layers[layer] = (key.new_empty(shape), value.new_empty(shape))
        for kept, fresh in zip(self.layers[layer], (key, value), strict=True):
            kept.view(-1, *fresh.shape[1:]).index_copy_(0, places, fresh)
        return self.layers[layer]


@dataclass(frozen=True)
class WindowGroup:
    """Rows of one length that compute equal numbers of columns.

    Attributes:
        index: [G,S] int64 places of the computed tokens in the packed row.
        slots: of the rows: a run of them, which is read in place, or [G] int64.
        length: tokens of each row, all of them seen.
    """

    index: Tensor
    slots: slice | Tensor
    length: int


@dataclass(frozen=True)
class WindowPlan:
    """Attention of computed columns to their whole rows."""

    store: _Store
    groups: tuple[WindowGroup, ...]
    places: Tensor
    restore: Tensor | None

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`dare_core.backbones.attention.AttentionPlan`."""
        heads, kv_heads, width = query.shape[1], key.shape[1], query.shape[3]
        if query.shape[2] != len(self.places):
            raise ValueError(f"the plan is for {len(self.places)} packed tokens, the forward has {query.shape[2]}")
        repeat = heads // kv_heads
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        query, key, value = (t[0].transpose(0, 1) for t in (query, key, value))
        kept = self.store.write(layer, self.places, key, value)
        pieces = []
        for group in self.groups:
            rows, size = group.index.shape
            keys, values = (t[group.slots][:, : group.length].transpose(1, 2) for t in kept)
            asked = query.reshape(rows, size, heads, width) if self.restore is None else query[group.index]
            # The query heads of one key head stand side by side: they become further queries of that head.
            asked = asked.transpose(1, 2).reshape(rows, kv_heads, repeat * size, width)
            mixed = scaled_dot_product_attention(asked, keys, values, scale=scaling)
            pieces.append(mixed.reshape(rows, heads, size, -1).transpose(1, 2).flatten(0, 1))
        if self.restore is None:
            return pieces[0][None]
        return torch.cat(pieces)[self.restore][None]


class RowWindows(WindowCache):
    """The cache of an adapter whose module asks attention plans.

    Args:
        slots: rows it has room for.
        capacity: tokens per row.
        states: runs the backbone on a packed row and gives the states [M,H] that are read.
        head: turns states [M,H] into logits [M,V].
        shift: of the adapter's logits.
    """

    def __init__(
        self,
        slots: int,
        capacity: int,
        states: Callable[[Packed], Tensor],
        head: Callable[[Tensor], Tensor],
        shift: int,
    ) -> None:
        self._store = _Store(slots, capacity)
        self._lengths = [0] * slots
        self._states, self._head, self._shift = states, head, shift

    @property
    def reach(self) -> int:
        """See the interface."""
        return self._shift

    def logits(self, tokens: Tensor, valid: Tensor, computed: Tensor, where: Tensor, *, slots: Tensor) -> Tensor:
        """See the interface."""
        place, computed = positions(valid), computed & valid
        read = self._read(computed, where)
        used, lengths, sizes = torch.stack([slots, valid.sum(dim=1), computed.sum(dim=1)]).tolist()
        for slot, length, size in zip(used, lengths, sizes, strict=True):
            if size < length != self._lengths[slot]:
                raise ValueError(f"a row of {length} tokens computes {size}, and its cache holds {self._lengths[slot]}")
            self._lengths[slot] = length
        places = (slots[:, None] * self._store.capacity + place)[computed]
        groups, restore = self._groups(used, lengths, sizes, tokens.device)
        plan = WindowPlan(self._store, groups, places, restore)
        return self._head(self._states(Packed(tokens[computed], place[computed], plan, read)))

    def _read(self, computed: Tensor, where: Tensor) -> Tensor:
        """[M] packed index of the state that each scored position's logits come from."""
        row, column = where.nonzero(as_tuple=True)
        # A row's first token is predicted by nothing and reads its own state as filler.
        column = (column - self._shift).clamp(min=0)
        if not bool(computed[row, column].all()):
            raise ValueError("logits are to be read from columns that are not computed")
        packed = computed.flatten().long().cumsum(dim=0).view(computed.shape) - 1
        return packed[row, column]

    def _groups(
        self, used: list[int], lengths: list[int], sizes: list[int], device: torch.device
    ) -> tuple[tuple[WindowGroup, ...], Tensor | None]:
        """Rows by length and number of computed columns; None: one group, in the packed row's own order."""
        members: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        begin = 0
        for slot, length, size in zip(used, lengths, sizes, strict=True):
            if size:
                members[length, size].append((slot, begin))
            begin += size
        groups = []
        for (length, size), rows in members.items():
            begins = torch.tensor([at for _, at in rows], device=device)
            index = begins[:, None] + torch.arange(size, device=device)
            groups.append(WindowGroup(index, _run([slot for slot, _ in rows], device), length))
        if len(groups) == 1:
            return tuple(groups), None
        return tuple(groups), torch.cat([group.index.flatten() for group in groups]).argsort()


def _run(slots: Sequence[int], device: torch.device) -> slice | Tensor:
    first = slots[0]
    if list(slots) == list(range(first, first + len(slots))):
        return slice(first, first + len(slots))
    return torch.tensor(slots, device=device)
