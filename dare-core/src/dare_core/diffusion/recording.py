"""What a denoising loop records beside commit steps: snapshots of forwards, and edits."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_core.diffusion.proposal import Proposals
from dare_core.types import Edits, Snapshots


class Recorder:
    """Collects what is asked for.

    Args:
        snapshots: keep the state of every forward.
        edits: keep replacements of committed tokens.
    """

    def __init__(self, *, snapshots: bool, edits: bool) -> None:
        self.takes_snapshots = snapshots
        self._takes_edits = edits
        self._forwards: list[tuple[Tensor, ...]] = []
        self._edits: list[tuple[Tensor, ...]] = []

    def forward(
        self, rows: Tensor, step: Tensor, inputs: Tensor, masked: Tensor, scored: Tensor, proposals: Proposals
    ) -> None:
        """One forward of ``rows`` [R]: its number ``step`` [R], ``inputs`` [R,L], which of them were masked, and the
        proposals at the ``scored`` positions."""
        if not self.takes_snapshots:
            return
        predicted = inputs.masked_scatter(scored, proposals.token).where(masked, inputs)
        confidence = torch.zeros(inputs.shape, dtype=torch.float64, device=inputs.device)
        confidence = confidence.masked_scatter(scored, proposals.logp.exp()) * masked
        self._forwards.append((inputs, predicted, confidence, rows, step.clone()))

    def edited(self, rows: Tensor, step: Tensor, before: Tensor, after: Tensor, where: Tensor) -> None:
        """Tokens of ``rows`` [R] replaced at ``where`` [R,L] by forward ``step`` [R]."""
        if not self._takes_edits:
            return
        at, column = where.nonzero(as_tuple=True)
        self._edits.append((rows[at], step[at], column, before[where], after[where]))

    def snapshots(self) -> Snapshots | None:
        """All forwards, ordered by row and step; None if none were kept."""
        if not self._forwards:
            return None
        inputs, predicted, confidence, row, step = _joined(self._forwards)
        order = _by(row, step)
        return Snapshots(
            inputs=inputs[order],
            predicted=predicted[order],
            confidence=confidence[order],
            row=row[order],
            step=step[order],
        )

    def edits(self, device: torch.device) -> Edits | None:
        """All replacements, ordered by row, step and column; None where nothing may be edited."""
        if not self._takes_edits:
            return None
        empty = (torch.zeros(0, dtype=torch.int64, device=device),) * 5
        row, step, column, old, new = _joined([empty, *self._edits])
        order = column.argsort(stable=True)
        order = order[_by(row[order], step[order])]
        return Edits(row=row[order], step=step[order], column=column[order], old=old[order], new=new[order])


def _joined(parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _by(row: Tensor, step: Tensor) -> Tensor:
    """Order by row, then step."""
    if not len(row):
        return row
    return (row * (int(step.max()) + 1) + step).argsort(stable=True)
