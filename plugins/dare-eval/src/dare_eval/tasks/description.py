"""What a task's yaml file says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from dare_core.api import SectionConfig


class TaskData(SectionConfig):
    """Where rows come from and what their fields are called."""

    file: str = Field(description="JSON lines, plain or gzip, relative to the data folder; `.gz` may be added or left.")
    origin: str = Field("", description="How to get the file, for the message when it is missing.")
    id: tuple[str, ...] = Field(("id",), description="Field with the row's id; the first of these that a row has.")
    fields: Mapping[str, tuple[str, ...]] = Field(
        description="Name in templates -> dotted field of the row; the first of these that a row has."
    )


class Turn(SectionConfig):
    """One chat turn."""

    role: Literal["system", "user", "assistant"] = Field(description="Who speaks.")
    content: str = Field(description="Text with {name} places; {{ and }} are braces.")


class Shots(SectionConfig):
    """Worked examples before the question: the first rows of a file."""

    file: str = Field(description="JSON lines with the same fields as the task's data.")
    origin: str = Field("", description="How to get the file.")
    count: PositiveInt = Field(description="Examples shown.")
    answer: str = Field(description="Template of an example's answer.")
    separator: str = Field("\n\n", description="Between examples of a plain-text prompt.")


class Scoring(SectionConfig):
    """How responses are judged."""

    rule: str = Field(description="A rule or verifier by name; see docs/evaluation.md.")
    options: Mapping[str, Any] = Field(default_factory=dict, description="Options of that rule.")


class ChoiceScoring(SectionConfig):
    """How continuations are compared."""

    continuation: str = Field(" {choice}", description="Template of what is scored: {choice} or {letter}.")
    headline: Literal["accuracy", "accuracy_per_character", "accuracy_per_token"] = Field(
        "accuracy", description="Which comparison is the headline: plain sums, or means per character or token."
    )


class TaskDescription(SectionConfig):
    """A task. `scoring` judges generated text; `choices` compares the likelihood of given continuations."""

    task: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Name.")
    version: PositiveInt = Field(description="Raised whenever prompts, extraction or scoring change.")
    summary: str = Field(description="One line.")
    data: TaskData = Field(description="Rows.")
    prompt: str | tuple[Turn, ...] = Field(description="Plain text or chat turns over the data's fields.")
    shots: Shots | None = Field(None, description="Worked examples.")
    reference: str | None = Field(None, description="Template of the reference answer.")
    meta: tuple[str, ...] = Field((), description="Fields that the rule reads besides the reference.")
    group: str | None = Field(None, description="Field by which accuracies are averaged (macro_accuracy).")
    scoring: Scoring | None = Field(None, description="For generated text.")
    choices: ChoiceScoring | None = Field(None, description="For given continuations; needs a data field `choices`.")
    stop: tuple[str, ...] = Field((), description="Responses are cut at the first of these, after decoding.")
    headline: str = Field("accuracy", description="The metric that a table shows.")
    new_tokens: PositiveInt | None = Field(None, description="Response length where nobody says otherwise.")
    temperature: float | None = Field(None, ge=0, description="Temperature where nobody says otherwise.")
    samples: PositiveInt = Field(1, description="Responses per question where nobody says otherwise.")

    @model_validator(mode="after")
    def _one_kind(self) -> TaskDescription:
        if (self.scoring is None) == (self.choices is None):
            raise ValueError("give either 'scoring' (generated text) or 'choices' (likelihood of continuations)")
        if self.choices is not None and "choices" not in self.data.fields:
            raise ValueError("a likelihood task needs a data field 'choices'")
        missing = [name for name in self.meta if name not in self.data.fields]
        if missing or (self.group is not None and self.group not in self.data.fields):
            raise ValueError(f"'meta' and 'group' name data fields; not among them: {', '.join(missing) or self.group}")
        return self
