"""The published rules agree with what the published scoring functions gave on real model replies."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dare_core.types import Prompt, Verdict
from dare_eval.answers import first_answer_block
from dare_eval.config import CountdownSection, MathSection, SudokuSection
from dare_eval.countdown import CountdownReward, published_box, published_expression, reaches
from dare_eval.latex_equality import equal_strings
from dare_eval.math_reward import MathReward
from dare_eval.sudoku import SudokuReward

STORED = Path(__file__).parents[1] / "goldens" / "data" / "evaluation_scoring_cases.jsonl.gz"


def rows(rule: str) -> Iterator[dict[str, Any]]:
    with gzip.open(STORED, "rt", encoding="utf-8") as lines:
        found = [row for row in map(json.loads, lines) if row["rule"] == rule]
    assert found
    return iter(found)


def test_countdown_d1_gives_the_published_scores() -> None:
    reward = CountdownReward(CountdownSection(score="d1"))
    for row in rows("dare_countdown_reward"):
        meta = {"numbers": row["numbers"], "target": row["target"]}
        [verdict] = reward.judge([Prompt(row["id"], 0, text="q", meta=meta)], [row["input"]])
        assert verdict.score == row["score"], row["id"]


def test_countdown_evaluation_reads_the_published_expression() -> None:
    for row in rows("d1_countdown"):
        numbers, target = row["reference"]
        expression = published_expression(row["input"])
        assert expression == row["extracted"], row["id"]
        assert reaches(expression, numbers, Fraction(target))[0] == row["correct"], row["id"]


def test_sudoku_d1_gives_the_published_scores() -> None:
    reward = SudokuReward(SudokuSection(score="d1"))
    for row in rows("dare_sudoku_reward"):
        if len(row["puzzle"]) != 16:
            continue
        prompt = Prompt(row["id"], 0, text="q", reference=row["reference"], meta={"puzzle": row["puzzle"]})
        [verdict] = reward.judge([prompt], [row["input"]])
        assert verdict.score == pytest.approx(row["score"]), row["id"]


def test_string_equality_agrees_with_the_published_one() -> None:
    for row in rows("d1_math500"):
        text = published_box(row["input"])
        if text is None or not text.strip():
            text = first_answer_block(row["input"])
        right = text is not None and equal_strings(text, row["reference"])
        assert right == row["correct"], row["id"]


def test_math_verify_agrees_with_the_published_verdicts() -> None:
    stored = list(rows("math_verify"))
    prompts = [Prompt(row["id"], i, text="q", reference=row["reference"]) for i, row in enumerate(stored)]
    with closing(MathReward(MathSection(time_limit=20.0))) as reward:
        found: list[Verdict] = reward.judge(prompts, [row["input"] for row in stored])
    differing = [row["id"] for row, verdict in zip(stored, found, strict=True) if verdict.score != row["correct"]]
    assert differing == []
