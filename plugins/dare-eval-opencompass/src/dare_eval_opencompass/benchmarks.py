"""The benchmarks of ``benchmarks.yaml``, and any other dataset configuration of OpenCompass."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import Field, PositiveInt

from dare_core.api import Problem, SectionConfig, UserError

_MODULE = re.compile(r"[A-Za-z0-9_]+[/.][A-Za-z0-9_]+")


class Benchmark(SectionConfig):
    """One benchmark."""

    title: str = Field(description="As tables call it.")
    config: str | None = Field(None, description="Module below `opencompass.configs.datasets`.")
    rows: str | None = Field(None, description="Our file of multiple-choice rows, instead of a configuration.")
    shots: int | None = Field(None, description="Worked examples in the prompt.")
    files: tuple[str, ...] = Field((), description="What must lie below the data folder.")
    new_tokens: PositiveInt | None = Field(None, description="Response length where nobody says otherwise.")
    temperature: float | None = Field(None, description="Temperature where nobody says otherwise.")
    repeats: PositiveInt = Field(1, description="Responses per question.")
    metric: str = Field("accuracy", description="The number of OpenCompass's result that is the headline, in percent.")
    boxed: bool = Field(False, description="Judge by OpenCompass's string rule for boxed answers.")
    whole: bool = Field(False, description="OpenCompass scores all rows or none.")
    runs_code: bool = Field(False, description="OpenCompass runs generated programs.")
    difference: str = Field("", description="How this differs from what was published.")


@cache
def benchmarks() -> dict[str, Benchmark]:
    """Name -> benchmark, of the file."""
    return {name: Benchmark.model_validate(fields) for name, fields in _file()["benchmarks"].items()}


def version() -> int:
    """Version of the file."""
    return int(_file()["version"])


def find(name: str) -> Benchmark:
    """The benchmark called ``name``, or OpenCompass's configuration ``family/module``.

    Raises:
        UserError: neither; names near ones.
    """
    known = benchmarks()
    if name in known:
        return known[name]
    if _MODULE.fullmatch(name):
        return Benchmark(title=name, config=name.replace("/", "."))
    near = get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    hint += f"benchmarks: {', '.join(known)}; or family/module of OpenCompass's dataset configurations"
    raise UserError(Problem(f"unknown benchmark '{name}'", path="eval.task", hint=hint))


@cache
def _file() -> dict[str, Any]:
    return dict(yaml.safe_load(files("dare_eval_opencompass").joinpath("benchmarks.yaml").read_text(encoding="utf-8")))
