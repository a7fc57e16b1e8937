"""The pages on data, rewards and the run folder say what the code does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from dare_core.builtin import dare_datasets, dare_rewards
from dare_core.data.config import JsonLinesSection
from dare_core.rewards.config import ExtractRule, MatchSection, PythonSection
from dare_core.run import folder as run_folder

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = {"jsonl": JsonLinesSection, "match": MatchSection, "python": PythonSection}


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def examples() -> list[Mapping[str, Any]]:
    blocks = re.findall(r"```yaml\n(.*?)```", page("data.md") + page("rewards.md"), flags=re.DOTALL)
    sections = [next(iter(yaml.safe_load(block).values())) for block in blocks]
    return [part for section in sections for part in section.get("parts", [section])]


@pytest.mark.parametrize("section", examples(), ids=lambda section: section["kind"])
def test_examples_are_valid_sections(section: Mapping[str, Any]) -> None:
    options = {key: value for key, value in section.items() if key not in ("kind", "weight")}
    SECTIONS[section["kind"]](**options)


def test_every_kind_and_rule_is_documented() -> None:
    assert [c.kind for c in dare_datasets() if f"| `{c.kind}` |" not in page("data.md")] == []
    assert [c.kind for c in dare_rewards() if f"## {c.kind}\n" not in page("rewards.md")] == []
    assert [rule for rule in get_args(ExtractRule) if f"| `{rule}` |" not in page("rewards.md")] == []


def test_every_file_of_a_run_is_documented() -> None:
    names = (run_folder.MANIFEST, run_folder.METRICS, run_folder.LEDGER, run_folder.STATE)
    assert [
        n for n in (*names, run_folder.INPUT, run_folder.RESOLVED) if f"| `{n}` |" not in page("run-folder.md")
    ] == []
