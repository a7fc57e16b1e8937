"""Options of backends that decode with the live model by the loop of this room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from dare_core.diffusion.rules import find_rule
from dare_core.errors import UserError
from dare_core.spec.sections import RolloutSection
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

    def withheld(self) -> Mapping[str, str]:
        """What rules that edit take away: commit steps that replay, and log-probabilities of the final tokens."""
        rule = find_rule(SelectionRule(self.selection.kind, dict(self.selection.options)))
        if not rule.edits:
            return {}
        reason = f"rollout.selection {rule.kind!r} replaces committed tokens"
        return dict.fromkeys(("commit-step", "logp"), reason)

    @model_validator(mode="after")
    def _known_selection(self) -> DenoisingSection:
        try:
            find_rule(SelectionRule(self.selection.kind, dict(self.selection.options)))
        except UserError as error:
            raise ValueError(str(error)) from error
        return self
