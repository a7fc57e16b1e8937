"""Views: corrupted copies of rows, the currency between estimators, adapters and engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from dare_core.types._shapes import expect_dtype, expect_shape
from dare_core.types.model import AttentionLayout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Views:
    """N corrupted copies of rows: what the model sees, which positions are scored, with which weight.

    Attributes:
        inputs: [N,L] int64 what the model sees.
        targets: [N,L] int64 the clean token everywhere.
        valid: [N,L] bool positions that exist; padding may stand anywhere and is never computed.
        scored: [N,L] bool positions whose log-probability is read; a subset of ``valid``.
        weight: [N,L] float importance of each scored token; 0 elsewhere.
        row: [N] int64 index of the row in its batch.
        draw: [N] int64 draw, denoising step or snapshot within the row.
        prompt_length: [N] int64 valid prompt tokens before the first response token.
        layout: how positions attend.
        temperature: logits are divided by it before the softmax.

    Example: one row ``[7 8 | 3 4]`` with its second response token masked (mask id 9)::

        inputs  [[7, 8, 3, 9]]   targets [[7, 8, 3, 4]]   scored [[F, F, F, T]]   weight [[0, 0, 0, 2.0]]
    """

    inputs: Tensor
    targets: Tensor
    valid: Tensor
    scored: Tensor
    weight: Tensor
    row: Tensor
    draw: Tensor
    prompt_length: Tensor
    layout: AttentionLayout
    temperature: float = 1.0

    def __post_init__(self) -> None:
        shape = tuple(self.inputs.shape)
        for name, dtype in (
            ("inputs", "int64"),
            ("targets", "int64"),
            ("valid", "bool"),
            ("scored", "bool"),
            ("weight", "float"),
        ):
            expect_shape("Views", name, getattr(self, name), shape, "[N,L]")
            expect_dtype("Views", name, getattr(self, name), dtype)
        for name in ("row", "draw", "prompt_length"):
            expect_shape("Views", name, getattr(self, name), shape[:1], "[N]")
            expect_dtype("Views", name, getattr(self, name), "int64")
        if bool((self.scored & ~self.valid).any()):
            raise ValueError("Views.scored marks positions that are not valid")
        if self.temperature <= 0:
            raise ValueError(f"Views.temperature must be positive, not {self.temperature}")

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    def take(self, index: Tensor) -> Views:
        """The views at ``index`` [M], in that order."""
        picked = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name not in ("layout", "temperature")}
        return replace(self, **picked)

    def to(self, device: object) -> Views:
        """The same views on another device."""
        moved = {
            f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name not in ("layout", "temperature")
        }
        return replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What a policy says of views; zero at positions that are not scored.

    Attributes:
        logp: [N,L] log-probability (nats) of the target.
        entropy: [N,L] entropy (nats) of the predicted distribution, where asked for.
        value: [N,L] value prediction, from value models.
        correct: [N,L] bool whether the target is the most probable token, where entropy is asked for; no gradient.
    """

    logp: Tensor
    entropy: Tensor | None = None
    value: Tensor | None = None
    correct: Tensor | None = None

    def detached(self) -> Scores:
        """The same numbers without gradient."""
        return self._map(lambda score: score.detach())

    def leaves(self) -> Scores:
        """Copies that collect gradients: the small tensors on which a loss is taken in a two-pass update."""
        return self._map(lambda score: score.detach().clone().requires_grad_())

    def gradients(self) -> Scores:
        """D loss / d score after a backward through :meth:`leaves`; zero for a score that the loss did not use."""
        gradients = self._map(lambda score: score.grad if score.grad is not None else score.detach() * 0)
        return replace(gradients, correct=None)

    def take(self, index: Tensor) -> Scores:
        """Those of the views at ``index`` [M]."""
        taken = self._map(lambda score: score[index])
        return replace(taken, correct=None if self.correct is None else self.correct[index])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Scores:
        return Scores(
            logp=change(self.logp),
            entropy=None if self.entropy is None else change(self.entropy),
            value=None if self.value is None else change(self.value),
            correct=self.correct,
        )
