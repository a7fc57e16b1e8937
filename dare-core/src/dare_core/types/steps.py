"""What a denoising loop shows while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_core.types._shapes import expect_shape

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DenoisingStep:
    """The active rows after one forward.

    Attributes:
        row: [R] int64 row of the call: prompts in order, then samples.
        forward: [R] int64 the forward, from 0.
        tokens: [R,L] int64 canvas.
        response: [R,L] bool positions to decode.
        decided: [R,L] bool response positions that hold a token.
        changed: [R,L] bool those of them that this forward wrote.
        probability: [R,L] of a decided token when it was committed; 0 elsewhere.
        finished: [R] bool rows that are done.
    """

    row: Tensor
    forward: Tensor
    tokens: Tensor
    response: Tensor
    decided: Tensor
    changed: Tensor
    probability: Tensor
    finished: Tensor

    def __post_init__(self) -> None:
        for name in ("response", "decided", "changed", "probability"):
            expect_shape("DenoisingStep", name, getattr(self, name), self.tokens.shape, "[R,L]")


#: called after every forward
Watch = Callable[[DenoisingStep], None]
