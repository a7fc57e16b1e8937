"""The rows of a denoising loop against a key-value cache: slots, and prompts that several rows share."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_core.diffusion.canvas import Canvas
from dare_core.interfaces import KeyValueCache
from dare_core.types import AttentionLayout


class CachedRows:
    """Which slot each active row has. One form of :class:`dare_core.diffusion.forwards.RowForwards`.

    The complete blocks of a prompt are computed once for all rows of a batch that begin with them.

    Args:
        cache: with a slot for every active row.
        canvas: the rows.
        layout: how they attend.
    """

    def __init__(self, cache: KeyValueCache, canvas: Canvas, layout: AttentionLayout) -> None:
        self._cache, self._canvas, self._layout = cache, canvas, layout
        self._free = list(range(len(cache.lengths)))[::-1]
        self._slot: dict[int, int] = {}
        self._prefix: dict[int, tuple[int, ...]] = {}

    def enter(self, rows: Tensor) -> None:
        """Give ``rows`` [R] slots, and fill these with the complete blocks of their prompts."""
        canvas = self._canvas
        computed = []
        copied: list[tuple[int, int]] = []
        owners = {prefix: row for row, prefix in self._prefix.items()}
        for row, length in zip(rows.tolist(), canvas.block_start(rows).tolist(), strict=True):
            self._slot[row] = self._free.pop()
            self._cache.clear([self._slot[row]])
            prefix = tuple(canvas.tokens[row, :length].tolist())
            if not prefix:
                continue
            self._prefix[row] = prefix
            if prefix in owners:
                copied.append((owners[prefix], row))
            else:
                owners[prefix] = row
                computed.append(row)
        if computed:
            self._fill(torch.tensor(computed, device=rows.device))
        for source, row in copied:
            # The owner may have cached blocks of its response since.
            self._cache.copy(self._slot[source], [self._slot[row]])
            self._cache.clear([self._slot[row]], len(self._prefix[row]))

    def _fill(self, rows: Tensor) -> None:
        start = self._canvas.block_start(rows)
        valid = self._canvas.column < start[:, None]
        self.logits(rows, self._canvas.tokens[rows], valid, torch.zeros_like(valid))

    def leave(self, rows: Tensor) -> None:
        """Take the slots of ``rows`` [R] back."""
        for row in rows.tolist():
            self._free.append(self._slot.pop(row))
            self._prefix.pop(row, None)

    def forced(self, rows: Tensor) -> None:
        """Nothing: see :class:`dare_core.diffusion.forwards.RowForwards`."""

    def logits(
        self, rows: Tensor, tokens: Tensor, valid: Tensor, where: Tensor, condition: Tensor | None = None
    ) -> Tensor:
        """[M,V] logits at ``where`` [R,L] of ``rows`` [R], seen against what is cached of them."""
        slots = torch.tensor([self._slot[row] for row in rows.tolist()], device=rows.device)
        given = {} if condition is None else {"condition": condition}
        return self._cache.logits(
            tokens,
            valid,
            where,
            layout=self._layout,
            prompt_length=self._canvas.prompt_length[rows],
            slots=slots,
            keep=self._canvas.block_start(rows),
            **given,
        )
