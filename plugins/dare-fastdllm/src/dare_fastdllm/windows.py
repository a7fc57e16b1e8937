"""Which columns each forward of a block computes, and which it reads as they were.

Wu et al., "Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and Parallel Decoding",
arXiv:2505.22618. A block's first forward computes the whole row. Further ones compute the block and what lies to its
right (prefix cache), or the block alone (dual cache).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dare_core.api import Problem, UserError
from dare_core.diffusion.canvas import Canvas
from dare_core.interfaces import ModelAdapter, WindowCache
from dare_core.types import AttentionLayout

Window = Literal["prefix", "dual"]


@dataclass(frozen=True)
class WindowPolicy:
    """What is computed.

    Attributes:
        window: ``prefix`` or ``dual``.
        refresh_every: whole rows are computed at every n-th forward of a block; None = at its first one only.
    """

    window: Window
    refresh_every: int | None = None

    def computed(self, canvas: Canvas, rows: Tensor) -> Tensor:
        """[R,L] bool columns that the next forward of ``rows`` [R] computes."""
        start = canvas.block_start(rows)[:, None]
        window = canvas.column >= start
        if self.window == "dual":
            window = window & (canvas.column < start + canvas.block_length)
        step = canvas.step[rows]
        fresh = step == 0 if self.refresh_every is None else step % self.refresh_every == 0
        return (window | fresh[:, None]) & canvas.valid(rows)


class WindowRows:
    """The rows of a denoising loop against a window cache: :class:`dare_core.diffusion.forwards.RowForwards`.

    Where logits are shifted, a block's first token is predicted by the column before the block, which windows do not
    compute: it commits from the block's first forward, and no other token does.

    Args:
        cache: with a slot for every active row.
        canvas: the rows.
        policy: what each forward computes.
    """

    def __init__(self, cache: WindowCache, canvas: Canvas, policy: WindowPolicy) -> None:
        self._cache, self._canvas, self._policy = cache, canvas, policy
        self._free: list[int] = []
        self._slot: dict[int, int] = {}

    def enter(self, rows: Tensor) -> None:
        """See the protocol."""
        for row in rows.tolist():
            self._slot[row] = self._free.pop(0) if self._free else len(self._slot)

    def leave(self, rows: Tensor) -> None:
        """See the protocol."""
        self._free = sorted([*self._free, *(self._slot.pop(row) for row in rows.tolist())])

    def forced(self, rows: Tensor) -> Tensor | None:
        """See the protocol."""
        if not self._cache.reach:
            return None
        canvas = self._canvas
        return (canvas.column == canvas.block_start(rows)[:, None]) & (canvas.step[rows] == 0)[:, None]

    def logits(self, rows: Tensor, tokens: Tensor, valid: Tensor, where: Tensor) -> Tensor:
        """See the protocol."""
        slots = torch.tensor([self._slot[row] for row in rows.tolist()], device=rows.device)
        computed = self._policy.computed(self._canvas, rows)
        return self._cache.logits(tokens, valid, computed, where, slots=slots)


class WholeRows:
    """Every forward computes whole rows, exactly."""

    def __init__(self, adapter: ModelAdapter, canvas: Canvas, layout: AttentionLayout) -> None:
        self._adapter, self._canvas, self._layout = adapter, canvas, layout

    def enter(self, rows: Tensor) -> None:
        """Nothing is kept of rows."""

    def leave(self, rows: Tensor) -> None:
        """Nothing is kept of rows."""

    def forced(self, rows: Tensor) -> None:
        """The rule decides."""

    def logits(self, rows: Tensor, tokens: Tensor, valid: Tensor, where: Tensor) -> Tensor:
        """See the protocol."""
        prompt_length = self._canvas.prompt_length[rows]
        return self._adapter.logits(tokens, valid, where, layout=self._layout, prompt_length=prompt_length)


def window_rows(
    adapter: ModelAdapter, policy: WindowPolicy, canvas: Canvas, layout: AttentionLayout, rows: int
) -> WindowRows:
    """Forwards of ``rows`` rows at a time against an empty cache of the adapter.

    Raises:
        UserError: the adapter has no window cache.
    """
    cache = adapter.open_window_cache(rows, canvas.tokens.shape[1])
    if cache is None:
        message = f"model {adapter.facts.kind!r} has no approximate cache ('kv-approx')"
        raise UserError(Problem(message, "rollout.kind", hint="take the native backend"))
    return WindowRows(cache, canvas, policy)
