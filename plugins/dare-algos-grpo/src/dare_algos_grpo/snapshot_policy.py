"""Clipped policy gradients whose advantages belong to snapshots: single forwards, or segments of a tree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_algos_grpo.estimators.snapshots import recorded_snapshots
from dare_algos_grpo.policy import ClippedPolicy
from dare_core.types import BatchInputs, Snapshots


@dataclass(frozen=True)
class StepTable:
    """Where each snapshot stands in a table of rows and steps.

    Attributes:
        present: [B,T] bool steps that a row has.
        place: [S] int64 flat place of each snapshot, increasing.
    """

    present: Tensor
    place: Tensor

    @classmethod
    def of(cls, snapshots: Snapshots, rows: int) -> StepTable:
        """The table of a rollout's snapshots, which stand in the order of rows and steps."""
        steps = int(snapshots.step.max()) + 1 if len(snapshots.step) else 1
        place = snapshots.row * steps + snapshots.step
        present = torch.zeros(rows * steps, dtype=torch.bool, device=place.device).index_fill(0, place, True)
        return cls(present.view(rows, steps), place)

    def find(self, row: Tensor, step: Tensor) -> Tensor:
        """[N] int64 snapshots of these rows [N] and steps [N]."""
        return torch.searchsorted(self.place, row * self.present.shape[1] + step)


class SnapshotPolicy(ClippedPolicy):
    """Advantages [S]; views are snapshots, told apart by row and step."""

    def snapshots_of(self, inputs: BatchInputs) -> Tensor:
        """[N] int64 snapshot of each view."""
        table = StepTable.of(recorded_snapshots(inputs.rows), len(inputs.rows))
        return table.find(inputs.views.row, inputs.views.draw)

    def line_advantages(self, inputs: BatchInputs, row: Tensor) -> tuple[Tensor, Tensor]:
        """Of each view's snapshot; see the base."""
        return super().line_advantages(inputs, self.snapshots_of(inputs))
