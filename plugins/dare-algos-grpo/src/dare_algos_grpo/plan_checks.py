"""Contradictions between these algorithms and a decoding protocol, seen before the model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dare_algos_grpo.config import DTreeRpoSection
from dare_core.api import Problem, Slot
from dare_core.spec.sections import RolloutSection

if TYPE_CHECKING:
    from dare_core.spec.plan import RunPlan


def tree_problems(plan: RunPlan) -> Iterator[Problem]:
    """Rollouts branch between whole blocks that are decoded to their end."""
    algorithm, rollout = plan.choices.get(Slot.ALGORITHM), plan.choices.get(Slot.ROLLOUT)
    if algorithm is None or rollout is None or not isinstance(algorithm.config, DTreeRpoSection):
        return
    if isinstance(rollout.config, RolloutSection):
        try:
            algorithm.config.tree.cuts(rollout.config.settings(plan.facts.layout if plan.facts else None))
        except ValueError as error:
            yield Problem(
                f"'{algorithm.name}' cannot branch: {error}",
                path="rollout",
                hint="change new_tokens, block_length or algorithm.levels, and let eos_rule be 'fill'",
            )
