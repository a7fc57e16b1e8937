"""What the RL algorithms of this package share: advantages within groups, and inner updates on views of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from dare_algos_elbo.config import GroupRewardSection
from dare_core.interfaces import Algorithm, Separable
from dare_core.objectives.advantages import rollout_advantages
from dare_core.types import Advantages, Estimate, LossInputs, Rollout, Verdict


class GroupReward(Algorithm):
    """Base of algorithms on rollouts with group-relative advantages."""

    separable_by: ClassVar[Separable | None] = "row"
    config: GroupRewardSection

    @property
    def inner_updates(self) -> int:
        """``inner_updates`` of the section."""
        return self.config.inner_updates

    @property
    def fresh_views(self) -> bool:
        """Every inner update draws its own."""
        return True

    def advantages(self, rollout: Rollout, verdicts: Sequence[Verdict]) -> Advantages:
        """Group-relative advantages [B] as the section's ``baseline``, ``scale`` and ``lone_row`` say."""
        c = self.config
        return rollout_advantages(
            rollout, verdicts, baseline=c.baseline, scale=c.scale, eps=c.scale_eps, single=c.lone_row
        )

    def given(self, inputs: LossInputs, per: str) -> tuple[Estimate, Advantages]:
        """The live estimate and the advantages.

        Raises:
            TypeError: the estimate has another shape than ``per``, or there are no advantages.
        """
        if inputs.live.per != per:
            raise TypeError(f"{type(self).__name__} needs an estimate per {per}, not per {inputs.live.per}")
        if inputs.advantages is None:
            raise TypeError(f"{type(self).__name__} needs advantages")
        return inputs.live, inputs.advantages

    @staticmethod
    def counted(inputs: LossInputs, row: Tensor | None = None) -> Tensor:
        """[B] or [N] bool entries that carry loss: with an estimate, and of rows with a usable verdict."""
        assert inputs.advantages is not None
        usable = inputs.advantages.usable
        return inputs.live.mask & (usable if row is None else usable[row])
