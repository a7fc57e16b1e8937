"""Options of the native backend."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dare_core.diffusion.rules import find_rule
from dare_core.errors import UserError
from dare_core.spec.sections import RolloutSection
from dare_core.types import SelectionRule


class NativeSection(RolloutSection):
    """Decodes with the live model, without caches or other approximations."""

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

    @model_validator(mode="after")
    def _known_selection(self) -> NativeSection:
        try:
            find_rule(SelectionRule(self.selection.kind, dict(self.selection.options)))
        except UserError as error:
            raise ValueError(str(error)) from error
        return self
