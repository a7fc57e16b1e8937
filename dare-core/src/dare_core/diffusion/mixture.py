"""Forwards that mix two policies' logits: ``(1 - s) z + s z_other``, the logits of their geometric mixture."""

from __future__ import annotations

from torch import Tensor

from dare_core.diffusion.canvas import Canvas
from dare_core.interfaces import LogitMixture, ModelAdapter
from dare_core.types import AttentionLayout


class MixedForwards:
    """Computes rows afresh under both policies; see :class:`dare_core.diffusion.forwards.RowForwards`."""

    def __init__(
        self, adapter: ModelAdapter, mixture: LogitMixture, canvas: Canvas, layout: AttentionLayout, rows: int
    ) -> None:
        self._adapter = adapter
        self._mixture = mixture
        self._canvas = canvas
        self._layout = layout

    def enter(self, rows: Tensor) -> None:
        """Nothing is kept."""

    def leave(self, rows: Tensor) -> None:
        """Nothing is kept."""

    def forced(self, active: Tensor) -> Tensor | None:
        """Nothing is decided here."""
        return None

    def logits(self, active: Tensor, tokens: Tensor, valid: Tensor, scored: Tensor) -> Tensor:
        """[M,V] mixed logits at ``scored`` [R,L] positions."""
        prompt_length = self._canvas.prompt_length[active]

        def computed() -> Tensor:
            return self._adapter.logits(tokens, valid, scored, layout=self._layout, prompt_length=prompt_length)

        live = computed()
        with self._mixture.other():
            return live.lerp(computed(), self._mixture.share)
