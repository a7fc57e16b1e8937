"""Options of the rewards. Each field's meaning is its description."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from dare_core.api import SectionConfig


class Gsm8kSection(SectionConfig):
    """`reward: {kind: gsm8k}`."""

    score: Literal["accuracy", "d1", "d-treerpo"] = Field(
        "accuracy",
        description="`accuracy`: 1 if the answer equals the reference as a number, else 0. `d1`: sum of five parts "
        "(correctness 2, integer 0.5, two formats 0.5 each, tags 0.5). `d-treerpo`: the same, correctness 1.",
    )


class MathSection(SectionConfig):
    """`reward: {kind: math}`."""

    score: Literal["math-verify", "coupled-grpo", "dare", "d1", "d-treerpo"] = Field(
        "math-verify",
        description="`math-verify`: 1 if mathematically equal, else 0. `coupled-grpo`: the same, but the answer must "
        "be boxed or announced and in LaTeX (MDPO too). `dare`: needs a box; equal as strings or symbolically. "
        "`d1`: 2 if the normalised strings are equal, plus 0.25 or 0.75 for the form. `d-treerpo`: 1, string equality.",
    )
    time_limit: PositiveFloat = Field(5.0, description="Wall-clock seconds per response; over it: `timeout`, score 0.")
    workers: PositiveInt = Field(2, description="Processes that check; unused by `d1` and `d-treerpo`.")
    memory_mb: PositiveInt = Field(4096, description="Address space of such a process in MiB; over it: `timeout`.")


class CountdownSection(SectionConfig):
    """`reward: {kind: countdown}`."""

    score: Literal["exact", "d1", "mdpo"] = Field(
        "exact",
        description="`exact`: 1 for + - * / and parentheses over exactly the given numbers, in exact arithmetic. "
        "`d1`: 0, 0.1 or 1 for none, a wrong or a right last answer tag; `**` and `//` allowed. `mdpo`: 1 or 0; "
        "takes a box or the first `expression = number`.",
    )


class SudokuSection(SectionConfig):
    """`reward: {kind: sudoku}`: 4x4 grids."""

    score: Literal["solved", "units", "d1"] = Field(
        "solved",
        description="`solved`: 1 for any valid grid that keeps the givens, else 0. `units`: share of the 12 rows, "
        "columns and boxes that are right. `d1`: share of the empty cells that equal the stored solution, in the last "
        "answer tag.",
    )
