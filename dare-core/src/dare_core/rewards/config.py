"""Options of the rewards that know nothing of a task."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dare_core.api import SectionConfig
from dare_core.components import Slot
from dare_core.spec.plan import Choice
from dare_core.spec.slots import SlotOptions

ExtractRule = Literal["whole", "last-number", "after", "regex", "boxed", "tag"]


class MatchSection(SectionConfig):
    """Extract an answer by a rule and compare it with the prompt's reference."""

    extract: ExtractRule = Field(
        "whole",
        description="whole: the response; last-number: the last number in it; after: the rest of the line behind "
        "`marker`; regex: the one group of `pattern`; boxed: the content of \\boxed{}; tag: the content of <`tag`>.",
    )
    occurrence: Literal["last", "first"] = Field(
        "last", description="Which occurrence counts, where a rule finds several (after, regex, boxed, tag)."
    )
    marker: str | None = Field(None, min_length=1, description="For `extract: after`, e.g. '####'.")
    pattern: str | None = Field(
        None, description="For `extract: regex`: a regular expression of Python's `re` with exactly one group."
    )
    regex_seconds: float = Field(
        2.0, gt=0, description="For `extract: regex`: time for one response; over it the verdict is `timeout`."
    )
    tag: str = Field("answer", pattern=r"^[A-Za-z][\w-]*$", description="For `extract: tag`: the tag's name.")
    extract_from_reference: bool = Field(False, description="Apply the same rule to the reference first.")
    compare: Literal["text", "number"] = Field(
        "text", description="text: equal characters; number: equal exact value, e.g. 0.50 and 1/2."
    )
    whitespace: Literal["collapse", "remove", "exact"] = Field(
        "collapse", description="For text: runs of white space count as one blank, as nothing, or as they are."
    )
    ignore_case: bool = Field(False, description="For text: compare without regard to case.")
    strip_commas: bool = Field(True, description="For numbers: read 1,234 as 1234.")
    strip_currency: bool = Field(True, description="For numbers: drop a currency sign, so that $5 is 5.")
    strip_percent: bool = Field(True, description="For numbers: drop a percent sign, so that 5% is 5, not 0.05.")
    correct_score: float = Field(1.0, description="Reward of a correct answer.")
    wrong_score: float = Field(0.0, description="Reward of a wrong answer.")
    unparsed_score: float = Field(0.0, description="Reward of a response without an answer, and of an empty one.")

    @field_validator("pattern")
    @classmethod
    def _one_group(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
            if groups != 1:
                raise ValueError(f"needs exactly one group, not {groups}; write (?:...) for the others")
        return pattern

    @model_validator(mode="after")
    def _rule_has_its_option(self) -> MatchSection:
        for rule, option in (("after", "marker"), ("regex", "pattern")):
            if (self.extract == rule) != (getattr(self, option) is not None):
                raise ValueError(f"'extract: {rule}' and '{option}' belong together")
        if self.extract == "last-number" and self.compare != "number":
            raise ValueError("'extract: last-number' needs 'compare: number'")
        return self


class PythonSection(SectionConfig):
    """A callable of yours."""

    function: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="'package.module:function', called as function(prompt, response) -> number, bool or Verdict.",
    )
    search_path: str | None = Field(
        None,
        description="Folder to import from besides installed packages, e.g. '.'; put first on Python's search path.",
    )
    full_score: float = Field(1.0, description="Numbers from here on count as `correct`, lower ones as `wrong`.")


class RewardPart(SectionConfig):
    """A reward with its weight."""

    weight: float = Field(1.0, description="Factor of this part's score in the sum.")
    reward: Annotated[Choice, SlotOptions(Slot.REWARD, inline=True)] = Field(description="The reward.")


class SumSection(SectionConfig):
    """Weighted sum of rewards."""

    parts: tuple[RewardPart, ...] = Field(min_length=1, description="Rewards to add up: {kind, weight, options}.")
