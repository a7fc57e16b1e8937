"""The match reward: extraction, exact comparison, and a status for every outcome."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dare_core.errors import UserError
from dare_core.rewards.config import MatchSection
from dare_core.rewards.match import Match
from dare_core.rewards.numbers import read_number
from dare_core.types import Prompt, Verdict

DATA = Path(__file__).parents[1] / "data"
NUMBERS: dict[str, Any] = {"extract": "last-number", "compare": "number"}


def judge(response: str, reference: str | None, **options: Any) -> Verdict:
    reward = Match(MatchSection(**options))
    try:
        return reward.judge([Prompt(id="p", index=0, text="q", reference=reference)], [response])[0]
    finally:
        reward.close()


def status(response: str, reference: str, **options: Any) -> str:
    return judge(response, reference, **options).status.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", 72),
        ("-1,234.50", Fraction(-2469, 2)),
        ("3/4", Fraction(3, 4)),
        (" 1e3 ", 1000),
        ("$5.", 5),
        ("-$5", -5),
        (r"\$72", 72),
        ("50%", 50),
        (r"50\%", 50),
        ("−3", -3),
        (".5", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),
        ("1,23", None),
        ("1/0", None),
        ("1e9999", None),
        ("1e999999999", None),
        ("--5", None),
        ("5 apples", None),
        ("", None),
        (".", None),
        ("9" * 401, None),
    ],
)
def test_numbers_are_read_exactly_or_not_at_all(text: str, value: Any) -> None:
    assert read_number(text) == value


@given(st.fractions(max_denominator=10**6))
def test_a_written_fraction_is_read_back(value: Fraction) -> None:
    assert read_number(str(value)) == value


@pytest.mark.parametrize(("option", "text"), [("commas", "1,234"), ("currency", "$5"), ("percent", "5%")])
def test_marks_make_it_no_number_where_they_are_not_stripped(option: str, text: str) -> None:
    assert read_number(text) is not None
    assert read_number(text, **{option: False}) is None


@pytest.mark.parametrize(
    ("response", "number"),
    [
        ("9-4", "4"),
        ("it is 9 - 5", "5"),
        ("so x = -5.", "-5"),
        ("pages 10-15", "15"),
        ("options 1,2,3", "3"),
        ("that is 3/4.", "3/4"),
        ("total $1,234.50!", "1234.5"),
        ("grows by 50%.", "50"),
        ("5,000,000 people", "5000000"),
        ("costs $-3", "-3"),
        ("48/2 = 24 clips", "24"),
    ],
)
def test_the_last_number_is_found_as_people_write_it(response: str, number: str) -> None:
    assert status(response, number, **NUMBERS) == "correct"


def test_real_solutions_match_their_references_by_two_rules() -> None:
    rows = [json.loads(line) for line in (DATA / "sft_gsm8k_train.jsonl").read_text().splitlines()]
    for options in ({"extract": "after", "marker": "####", "compare": "number"}, NUMBERS):
        verdicts = [status(row["answer"], row["metadata"]["final_answer"], **options) for row in rows]
        assert verdicts == ["correct"] * len(rows)


def test_real_sudoku_grids_match_whatever_their_layout() -> None:
    row = json.loads((DATA / "sudoku4x4_train.jsonl").read_text().splitlines()[0])
    grid = row["answer"]
    lines = "\n".join(" ".join(grid[start : start + 4]) for start in range(0, 16, 4))
    options = {"extract": "tag", "whitespace": "remove"}
    assert status(f"Here: <answer>\n{lines}\n</answer>", grid, **options) == "correct"
    assert status(f"Here: <answer>{grid[::-1]}</answer>", grid, **options) == "wrong"


@pytest.mark.parametrize(
    ("options", "response", "answer"),
    [
        ({}, "  a\n b ", "a b"),
        ({"whitespace": "exact"}, "\na  b\n", "a  b"),
        ({"ignore_case": True}, "PARIS", "Paris"),
        ({"extract": "after", "marker": "####"}, "#### no\n#### yes \nmore", "yes"),
        ({"extract": "after", "marker": "####", "occurrence": "first"}, "#### no\n#### yes", "no"),
        ({"extract": "boxed"}, r"\boxed{1} then \boxed{\frac{1}{3}}", r"\frac{1}{3}"),
        ({"extract": "boxed", "occurrence": "first"}, r"\boxed{1} then \boxed{2}", "1"),
        ({"extract": "boxed"}, r"\boxed{1} then \boxed{2", "1"),
        ({"extract": "boxed"}, r"\boxed{ \boxed{7}", "7"),
        ({"extract": "boxed"}, r"\boxed{a \boxed{b}}", r"a \boxed{b}"),
        ({"extract": "boxed"}, r"\boxed{a\}b}", r"a\}b"),
        ({"extract": "tag"}, "<answer>1</answer> <answer>2</answer> <answer>3", "2"),
        ({"extract": "tag", "tag": "final"}, "<answer>1</answer><final>2</final>", "2"),
        ({"extract": "tag"}, "<answer>1</answer> <answer>2</answer> so </answer>", "2"),
        ({"extract": "tag"}, "<answer><answer>2</answer></answer>", "2"),
        ({"extract": "regex", "pattern": r"is (\w+)"}, "it is red, it is blue", "blue"),
        ({"extract": "regex", "pattern": r"is (\w+)", "occurrence": "first"}, "it is red, it is blue", "red"),
        ({"extract": "regex", "pattern": r"(?s)A(.*)B"}, "A ü\n🙂 B", "ü 🙂"),
    ],
)
def test_each_rule_finds_the_answer(options: dict[str, Any], response: str, answer: str) -> None:
    assert status(response, answer, **options) == "correct"


@pytest.mark.parametrize(
    ("options", "response"),
    [
        ({"extract": "after", "marker": "####"}, "no marker"),
        ({"extract": "after", "marker": "####"}, "5 ####"),
        ({"extract": "boxed"}, r"\boxed{"),
        ({"extract": "boxed"}, r"\boxed{ }"),
        ({"extract": "tag"}, "</answer><answer>"),
        ({"extract": "regex", "pattern": r"x(y)?"}, "xz"),
        (NUMBERS, "no number here"),
        ({"extract": "whole", "compare": "number"}, "about 5"),
    ],
)
def test_a_response_without_an_answer_is_unparsed_and_not_wrong(options: dict[str, Any], response: str) -> None:
    verdict = judge(response, "5", **options | {"unparsed_score": -0.5, "extract_from_reference": False})
    assert (verdict.status.value, verdict.score) == ("unparsed", -0.5)


def test_scores_and_details_follow_the_outcome() -> None:
    options = NUMBERS | {"correct_score": 2.0, "wrong_score": -1.0, "unparsed_score": -2.0}
    assert judge("5", "5", **options) == Verdict(2.0, "correct", "5")  # type: ignore[arg-type]
    assert judge("6", "5", **options) == Verdict(-1.0, "wrong", "6")  # type: ignore[arg-type]
    empty = judge(" \n", "5", **options)
    assert (empty.status.value, empty.score) == ("empty", -2.0)


def test_the_rule_can_read_the_reference_too() -> None:
    options = {"extract": "after", "marker": "####", "compare": "number", "extract_from_reference": True}
    assert status("#### 72", "long solution\n#### 72.0", **options) == "correct"


def test_a_missing_reference_is_an_error_of_its_own_and_never_wrong() -> None:
    verdict = judge("5", None, **NUMBERS)
    assert (verdict.status.value, verdict.score) == ("error", None)


def test_unusable_references_are_named_before_training() -> None:
    prompts = [Prompt(id=f"r{n}", index=n, text="q", reference=ref) for n, ref in enumerate(["5", None, "five"])]
    with pytest.raises(UserError) as caught:
        Match(MatchSection(**NUMBERS)).check(prompts)
    assert [problem.where for problem in caught.value.problems] == ["row 'r1'", "row 'r2'"]
    assert "the reference is not a number: five" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extract": "regex"}, "'extract: regex' and 'pattern' belong together"),
        ({"marker": "x"}, "'extract: after' and 'marker' belong together"),
        ({"extract": "regex", "pattern": "a("}, "not a regular expression"),
        ({"extract": "regex", "pattern": "a(b)(c)"}, "exactly one group, not 2"),
        ({"extract": "last-number"}, "needs 'compare: number'"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MatchSection(**options)


@pytest.fixture
def hanging() -> Iterator[Match]:
    reward = Match(MatchSection(extract="regex", pattern=r"(?:a+)+(b)", regex_seconds=0.3))
    yield reward
    reward.close()


def test_a_pattern_that_hangs_times_out_and_the_next_response_is_served(hanging: Match) -> None:
    prompts = [Prompt(id="p", index=0, text="q", reference="b")] * 3
    verdicts: list[Verdict] = []
    begin = time.monotonic()
    thread = threading.Thread(target=lambda: verdicts.extend(hanging.judge(prompts, ["aab", "a" * 60, "aab"])))
    thread.start()
    thread.join(timeout=20)
    assert [verdict.status.value for verdict in verdicts] == ["correct", "timeout", "correct"]
    assert time.monotonic() - begin < 10


def test_long_responses_are_read_from_their_end() -> None:
    options = {"extract": "regex", "pattern": r"=(\d)"}
    assert status("=1" + " " * 100_000 + "=2", "2", **options) == "correct"
    assert status("=1" + " " * 100_000, "1", **options) == "unparsed"


@pytest.mark.parametrize("extract", ["boxed", "tag", "last-number"])
@pytest.mark.parametrize("unit", [r"\boxed{", "{", "<answer>", "1,", "1/", "-", "$"])
def test_rules_take_linear_time_on_awkward_text(extract: str, unit: str) -> None:
    compare = "number" if extract == "last-number" else "text"
    begin = time.monotonic()
    judge(unit * (100_000 // len(unit)), "5", extract=extract, compare=compare)
    assert time.monotonic() - begin < 2
