"""Credit for tokens that the model keeps preferring: what was likely in earlier forwards of a block counts again.

dInfer's credit decoding (Ma et al., arXiv:2510.08666). Per masked position a credit C over the vocabulary decays before
each further forward, grows by (largest probability)^gamma at the likeliest token, and adds alpha * log(1 + C) to the
logits that proposals and confidences are made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.diffusion.canvas import Canvas
from dare_core.diffusion.forwards import RowForwards


@dataclass(frozen=True)
class CreditRule:
    """The constants: weight alpha, boost exponent gamma, decay beta."""

    weight: float = 0.7
    boost: float = 0.2
    decay: float = 0.8

    def updated(self, credit: Tensor, logits: Tensor, *, first: Tensor) -> Tensor:
        """[M,V] credit after a forward.

        Args:
            credit: [M,V] before it.
            logits: [M,V] of the forward.
            first: [M] bool positions without an earlier forward.
        """
        probability, token = logits.softmax(dim=1).max(dim=1)
        kept = torch.where(first[:, None], torch.zeros_like(credit), credit * self.decay)
        return kept.scatter_add(1, token[:, None], probability.pow(self.boost)[:, None].to(credit.dtype))

    def fused(self, credit: Tensor, logits: Tensor) -> Tensor:
        """[M,V] logits with credit added."""
        return logits + self.weight * torch.log1p(credit).to(logits.dtype)


class CreditRows:
    """Forwards whose logits carry credit; keeps block length times vocabulary numbers per active row.

    Args:
        inner: the forwards.
        canvas: the rows.
        rule: the constants.
    """

    def __init__(self, inner: RowForwards, canvas: Canvas, rule: CreditRule) -> None:
        self._inner, self._canvas, self._rule = inner, canvas, rule
        self._credit: dict[int, Tensor] = {}

    def enter(self, rows: Tensor) -> None:
        """See :class:`dare_core.diffusion.forwards.RowForwards`."""
        self._inner.enter(rows)

    def leave(self, rows: Tensor) -> None:
        """See the protocol."""
        self._inner.leave(rows)
        for row in rows.tolist():
            self._credit.pop(row, None)

    def forced(self, rows: Tensor) -> Tensor | None:
        """See the protocol."""
        return self._inner.forced(rows)

    def logits(self, rows: Tensor, tokens: Tensor, valid: Tensor, where: Tensor) -> Tensor:
        """See the protocol."""
        logits = self._inner.logits(rows, tokens, valid, where)
        canvas, parts = self._canvas, []
        starts, steps = canvas.block_start(rows).tolist(), canvas.step[rows].tolist()
        pieces = torch.split(logits, where.sum(dim=1).tolist())
        for row, start, step, scored, piece in zip(rows.tolist(), starts, steps, where, pieces, strict=True):
            if row not in self._credit or step == 0:
                self._credit[row] = logits.new_zeros(canvas.block_length, logits.shape[1])
            at = scored.nonzero()[:, 0] - start
            first = torch.full_like(at, step == 0, dtype=torch.bool)
            credit = self._rule.updated(self._credit[row][at], piece, first=first)
            self._credit[row][at] = credit
            parts.append(self._rule.fused(credit, piece))
        return torch.cat(parts)
