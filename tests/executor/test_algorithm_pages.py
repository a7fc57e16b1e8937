"""The pages of algorithms show the options and defaults that the packages declare."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from dare_algos_elbo import plugin as elbo
from dare_algos_grpo import plugin as grpo
from dare_core.api import Component

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"
ALGORITHMS = {c.kind: c for package in (grpo, elbo) for c in package.dare_algorithms()}
ESTIMATORS = {c.kind: c for package in (grpo, elbo) for c in package.dare_likelihood_estimators()}


def shown(value: Any) -> str:
    """A value as the pages write it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value)


def rows_of_options(component: Component) -> list[str]:
    module, _, name = component.config.partition(":")
    fields = getattr(importlib.import_module(module), name).model_fields
    return [f"| `{key}` | {shown(field.default)} | {field.description} |" for key, field in fields.items()]


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_page_shows_every_option_default_and_preset(kind):
    text = (PAGES / f"{kind}.md").read_text(encoding="utf-8")
    component = ALGORITHMS[kind]
    estimator = ESTIMATORS[str(component.defaults["likelihood.kind"])]
    wanted = rows_of_options(component) + rows_of_options(estimator)
    for paths in (component.defaults, *component.presets.values()):
        wanted += [f"| `{path}` | {shown(value)} |" for path, value in paths.items()]
    assert [line for line in wanted if line not in text] == []


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_page_says_where_it_differs_and_what_to_aim_at(kind):
    text = (PAGES / f"{kind}.md").read_text(encoding="utf-8")
    for heading in ("Idea", "Formula", "Options", "Differs from the paper in", "Results to aim at"):
        assert f"## {heading}\n" in text
    assert ALGORITHMS[kind].paper in text
