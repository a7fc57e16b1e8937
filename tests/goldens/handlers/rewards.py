"""Rewards: every score column of the stored replies, from the product's rewards."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from dare_core.interfaces import Reward
from dare_core.testing.goldens import GoldenCase
from dare_core.types import Prompt, Verdict
from dare_eval.answers import last_box
from dare_eval.code_reward import CodeReward
from dare_eval.config import CodeRewardSection, CountdownSection, Gsm8kSection, MathSection, SudokuSection
from dare_eval.countdown import CountdownReward
from dare_eval.gsm8k import Gsm8kReward
from dare_eval.math_reward import MathReward
from dare_eval.scoring import code_text
from dare_eval.sudoku import SudokuReward
from tests.goldens.runner import golden

#: what the unified framework stores where it finds no box
NOT_FOUND = "ERROR: Answer Extraction Failed"


def verdicts(case: GoldenCase, reward: Reward, reference: str | None, meta: tuple[str, ...] = ()) -> list[Verdict]:
    """The reward's verdicts on the case's rows; ``reference`` and ``meta`` name row fields."""
    prompts = [
        Prompt(
            id=str(index),
            index=index,
            text="question",
            reference=None if reference is None else str(row[reference]),
            meta={name: row[name] for name in meta},
        )
        for index, row in enumerate(case.rows)
    ]
    with closing(reward):
        return reward.judge(prompts, [row["completion"] for row in case.rows])


def matches(case: GoldenCase, field: str, got: list[Any]) -> None:
    """Compare a column with ``expected.<field>`` under the case's tolerance."""
    assert len(got) == len(case.rows)
    tolerance = case.spec["tolerance"]
    for row, value in zip(case.rows, got, strict=True):
        want = row["expected"][field]
        if isinstance(want, float) and f"expected.{field}" not in tolerance["exact"]:
            want = pytest.approx(want, rel=tolerance["rtol"], abs=tolerance["atol"])
        assert value == want, f"{field} of {row['completion']!r}"


def all_fields_checked(case: GoldenCase, *fields: str) -> None:
    """The handler leaves no expected column out."""
    assert {f"expected.{field}" for field in fields} == {
        name for name, entry in case.spec["rows"]["fields"].items() if entry["role"] == "expected"
    }


def scores(found: list[Verdict]) -> list[float | None]:
    return [verdict.score for verdict in found]


@golden("algos-grpo", "reward", "JustGRPO rewards")
def justgrpo(case: GoldenCase) -> None:
    all_fields_checked(case, "reward")
    tasks = {
        "gsm8k": verdicts(case, Gsm8kReward(Gsm8kSection(score="justgrpo")), "ground_truth"),
        "math": verdicts(case, MathReward(MathSection(score="justgrpo")), "ground_truth"),
    }
    matches(case, "reward", [tasks[row["task"]][index].score for index, row in enumerate(case.rows)])


@golden("algos-grpo", "reward", "Countdown")
def countdown(case: GoldenCase) -> None:
    all_fields_checked(case, "d1", "dare", "mdpo")
    for field, score in (("d1", "d1"), ("dare", "d1"), ("mdpo", "mdpo")):
        reward = CountdownReward(CountdownSection(score=score))
        matches(case, field, scores(verdicts(case, reward, None, ("numbers", "target"))))


@golden("algos-grpo", "reward", "GSM8K reward functions of d1")
def gsm8k(case: GoldenCase) -> None:
    parts = {
        "xmlcount": "tags",
        "soft_format": "soft_format",
        "strict_format": "strict_format",
        "int": "integer",
        "correctness": "correctness",
    }
    all_fields_checked(case, *parts, "total", "dtree_correctness")
    found = verdicts(case, Gsm8kReward(Gsm8kSection(score="d1")), "ground_truth")
    for field, part in parts.items():
        matches(case, field, [verdict.parts[part] for verdict in found])
    matches(case, "total", scores(found))
    tree = verdicts(case, Gsm8kReward(Gsm8kSection(score="d-treerpo")), "ground_truth")
    matches(case, "dtree_correctness", [verdict.parts["correctness"] for verdict in tree])


@golden("algos-grpo", "reward", "MATH rewards")
def math(case: GoldenCase) -> None:
    all_fields_checked(case, "d1_correctness", "d1_format", "dtree_correctness", "dare_score", "dare_pred")
    found = verdicts(case, MathReward(MathSection(score="d1")), "solution")
    matches(case, "d1_correctness", [verdict.parts["correctness"] for verdict in found])
    matches(case, "d1_format", [verdict.parts["format"] for verdict in found])
    matches(case, "dtree_correctness", scores(verdicts(case, MathReward(MathSection(score="d-treerpo")), "solution")))
    matches(case, "dare_score", scores(verdicts(case, MathReward(MathSection(score="dare")), "dare_ground_truth")))
    boxes = [last_box(row["completion"]) for row in case.rows]
    matches(case, "dare_pred", [NOT_FOUND if box is None else box for box in boxes])


@golden("algos-grpo", "reward", "Accuracy reward of Coupled-GRPO")
def accuracy(case: GoldenCase) -> None:
    all_fields_checked(case, "diffucoder", "mdpo")
    found = scores(verdicts(case, MathReward(MathSection(score="coupled-grpo")), "solution"))
    matches(case, "diffucoder", found)
    matches(case, "mdpo", found)


@golden("algos-grpo", "reward", "4x4 Sudoku")
def sudoku(case: GoldenCase) -> None:
    all_fields_checked(case, "d1", "dare")
    reward = SudokuReward(SudokuSection(score="d1"))
    found = scores(verdicts(case, reward, "solution", ("puzzle",)))
    matches(case, "d1", found)
    matches(case, "dare", found)


@golden("algos-grpo", "reward", "Code format rewards")
def code_format(case: GoldenCase) -> None:
    all_fields_checked(case, "coupled_format", "justgrpo_format", "coupled_code", "dare_code")
    for field, score in (("coupled_format", "coupled-format"), ("justgrpo_format", "justgrpo-format")):
        matches(case, field, scores(verdicts(case, CodeReward(CodeRewardSection(score=score)), None)))
    replies = [row["completion"] for row in case.rows]
    matches(case, "coupled_code", [code_text.python_block(reply) for reply in replies])
    matches(case, "dare_code", [code_text.function_block(reply) for reply in replies])
