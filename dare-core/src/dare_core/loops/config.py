"""Options of core's evaluators."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from dare_core.components import Slot
from dare_core.spec.plan import Choice
from dare_core.spec.sections import EvaluatorSection
from dare_core.spec.slots import SlotOptions


class HeldOutSection(EvaluatorSection):
    """The run's reward on rows that are not trained on."""

    data: Annotated[Choice, SlotOptions(Slot.DATA)] = Field(description="Rows to evaluate on.")
    samples: PositiveInt = Field(1, description="Responses per prompt; scores are means over all.")
    temperature: float | None = Field(
        0.0, ge=0, description="Sampling temperature; null = the run's. Everything else is decoded as in the run."
    )
    allow_overlap: bool = Field(False, description="Accept prompts that are trained on as well.")


class NelboSection(EvaluatorSection):
    """The negative ELBO of answers that are not trained on, on the same masks at every evaluation."""

    data: Annotated[Choice, SlotOptions(Slot.DATA)] = Field(description="Rows with `completion` to evaluate on.")
    draws: PositiveInt = Field(8, description="Masks per answer; the shares of hidden tokens are spread evenly.")
    tokens_per_microbatch: PositiveInt = Field(8192, description="Tokens scored together.")
    allow_overlap: bool = Field(False, description="Accept prompts that are trained on as well.")
