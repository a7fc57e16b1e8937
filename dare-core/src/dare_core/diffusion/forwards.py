"""How the rows of a denoising loop are computed, if not each from scratch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from dare_core.diffusion.canvas import Canvas
from dare_core.types import AttentionLayout


class RowForwards(Protocol):
    """The forwards of the active rows, against whatever is kept of earlier ones."""

    def enter(self, rows: Tensor) -> None:
        """``rows`` [R] become active."""
        ...

    def leave(self, rows: Tensor) -> None:
        """``rows`` [R] are done."""
        ...

    def forced(self, rows: Tensor) -> Tensor | None:
        """[R,L] bool positions that commit at this forward whatever the rule says: in rows that have any, exactly
        these are scored and commit. None = the rule decides in all ``rows`` [R]."""
        ...

    def logits(self, rows: Tensor, tokens: Tensor, valid: Tensor, where: Tensor) -> Tensor:
        """[M,V] logits at ``where`` [R,L] of ``rows`` [R], whose ``tokens`` [R,L] are seen where ``valid`` [R,L]."""
        ...


#: (canvas, layout, rows that are active together) -> their forwards
OpenForwards = Callable[[Canvas, AttentionLayout, int], RowForwards]
