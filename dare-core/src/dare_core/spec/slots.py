"""Section fields that hold another component's options, such as the parts of ``sum`` or the data of an evaluation.

A config class marks such a field, and the resolver fills it with a validated :class:`~dare_core.spec.plan.Choice`::

    class RewardPart(SectionConfig):
        weight: float = Field(1.0, description="Factor of this part's score.")
        reward: Annotated[Choice, SlotOptions(Slot.REWARD, inline=True)] = Field(description="The reward.")

    class SumSection(SectionConfig):
        parts: tuple[RewardPart, ...] = Field(description="Rewards to add up.")

With ``inline`` the component's keys stand beside the other fields (``parts: [{kind: match, weight: 2}]``); without
it they stand below the field's name (``data: {kind: jsonl, path: ...}``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from dare_core.components import Slot
from dare_core.spec.plan import Choice

#: key of the stand-in by which a validated component travels through pydantic's JSON mode
STAND_IN = "$choice"


@dataclass(frozen=True)
class SlotOptions:
    """Marks a field that holds a component of ``slot``.

    Attributes:
        slot: whose kinds are allowed.
        inline: whether the component's keys stand beside the fields of the class that has this field.
    """

    slot: Slot
    inline: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Accepts a ready :class:`Choice`, or the resolver's stand-in for one."""
        chosen = core_schema.with_info_plain_validator_function(
            _ready_choice,
            serialization=core_schema.plain_serializer_function_ser_schema(_plain_choice),
        )
        return core_schema.nullable_schema(chosen) if NoneType in get_args(source) else chosen

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """A mark that ``dare schema`` replaces by the installed kinds of the slot."""
        return {"x-slot": str(self.slot), "x-inline": self.inline, "x-null": schema["type"] == "nullable"}


def _ready_choice(value: Any, info: ValidationInfo) -> Choice:
    if isinstance(value, Choice):
        return value
    if isinstance(value, Mapping) and isinstance(info.context, Mapping) and value.keys() == {STAND_IN}:
        ready = info.context[value[STAND_IN]]
        if isinstance(ready, Choice):
            return ready
    raise ValueError("must be a component with its options; specs are resolved by dare_core.spec.resolve")


def _plain_choice(choice: Choice) -> Any:
    return None if choice is None else {"kind": choice.name, **choice.config.model_dump(mode="json")}
