"""Options of the evaluator."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from dare_core.spec.sections import EvaluatorSection


class OpenCompassSection(EvaluatorSection):
    """`eval: [{kind: opencompass, task: gsm8k, data_folder: ...}]`: a benchmark of OpenCompass, answered by this
    framework's decoder."""

    task: str = Field(description="Name of a benchmark, or a dataset configuration of OpenCompass: `family/module`.")
    data_folder: str | None = Field(
        None,
        description="Folder in whose `data/` the files lie as OpenCompass lays them out, or with our packed files.",
    )
    environment: str | None = Field(
        None, description="Folder of OpenCompass's environment; default: `opencompass` inside the one that runs."
    )
    limit: PositiveInt | None = Field(None, description="Only the first questions of each dataset.")
    samples: PositiveInt | None = Field(None, description="Responses per question, instead of the benchmark's number.")
    temperature: float | Literal["task", "run"] = Field(
        "task", description="`task`: the benchmark's own, else 0. `run`: as the rollout section says. Or a number."
    )
    chat_template: bool = Field(True, description="Chat turns in the family's template; else turns joined as text.")
    answer_turn: Literal["prefill", "drop"] = Field(
        "prefill",
        description="An answer turn that ends a prompt (MBPP's `[BEGIN]`): the response goes on from it, or it is "
        "left out, as OpenCompass's own chat models do.",
    )
    allow_code_execution: bool = Field(
        False, description="Let OpenCompass run generated programs: by its own runner, which fences nothing in."
    )
    time_limit: PositiveFloat = Field(7200.0, description="Seconds that one call of OpenCompass may take.")
