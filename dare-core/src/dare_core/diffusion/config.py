"""Options of backends that decode with the live model by the loop of this room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field, field_validator, model_validator

from dare_core.diffusion.rules import find_rule
from dare_core.errors import Problem, UserError
from dare_core.spec.sections import RolloutSection, SelectionSection
from dare_core.types import SelectionRule


class DenoisingSection(RolloutSection):
    """How tokens are drawn and confidences compared."""

    sampler: Literal["categorical", "gumbel"] = Field(
        "categorical",
        description="How tokens are drawn at temperature > 0: `categorical` = one random number per position; "
        "`gumbel` = LLaDA's Gumbel noise. Both draw from the same distribution.",
    )
    ties: Literal["exact", "published"] = Field(
        "exact",
        description="How confidences are compared: `exact` = forms that tell apart probabilities next to 1; "
        "`published` = rounded probabilities, the lower position first where they are equal.",
    )

    def withheld(self) -> Mapping[str, tuple[str, str]]:
        """What the options take away, see the base class.

        Rules that replace tokens leave no commit steps that replay and no log-probabilities of final tokens; guidance
        and a mixture of policies each say what logits are.
        """
        rule = find_rule(SelectionRule(self.selection.kind, dict(self.selection.options)))
        found = {"mixture": ("rollout.guidance", "rollout.guidance is on")} if self.guidance else {}
        if not rule.replays:
            reason = f"rollout.selection {rule.kind!r} replaces committed tokens"
            found.update(dict.fromkeys(("commit-step", "logp"), ("rollout.selection", reason)))
        return found

    @model_validator(mode="after")
    def _schedule_of_the_noise(self) -> DenoisingSection:
        uniform = find_rule(SelectionRule(self.selection.kind, dict(self.selection.options))).noise == "uniform"
        if uniform != (self.schedule == "anew"):
            raise ValueError("schedule 'anew' and selection rules for uniform noise belong together")
        return self

    @field_validator("selection")
    @classmethod
    def _known_selection(cls, selection: SelectionSection) -> SelectionSection:
        try:
            find_rule(SelectionRule(selection.kind, dict(selection.options)))
        except UserError as error:
            raise ValueError("; ".join(_below_selection(problem) for problem in error.problems)) from error
        return selection


def _below_selection(problem: Problem) -> str:
    """The problem without the path that the section itself adds."""
    place = (problem.path or "").removeprefix("rollout.selection.")
    return str(replace(problem, path=place or None))
