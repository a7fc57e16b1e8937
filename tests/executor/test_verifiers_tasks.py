"""What each verifier counts as right, wrong and unreadable."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dare_core.api import UserError
from dare_core.interfaces import Reward
from dare_core.types import Prompt, Verdict
from dare_eval.config import CountdownSection, Gsm8kSection, MathSection, SudokuSection
from dare_eval.countdown import CountdownReward
from dare_eval.gsm8k import Gsm8kReward
from dare_eval.math_reward import MathReward
from dare_eval.sudoku import SudokuReward

DATA = Path(__file__).parents[2] / "examples" / "data"


def prompt(reference: str | None = None, **meta: Any) -> Prompt:
    return Prompt("row-1", 0, text="question", reference=reference, meta=meta)


def judged(reward: Reward, asked: Prompt, response: str) -> Verdict:
    [verdict] = reward.judge([asked], [response])
    return verdict


@pytest.fixture(scope="module")
def math() -> Iterator[MathReward]:
    reward = MathReward(MathSection(workers=1))
    yield reward
    reward.close()


@pytest.mark.parametrize(
    ("response", "status"),
    [
        ("48 / 2 = 24\n48 + 24 = 72\n#### 72", "correct"),
        ("<reasoning>\n5 and 6\n</reasoning>\n<answer>\n72\n</answer>", "correct"),
        ("<answer>\\boxed{72}</answer>", "correct"),
        ("\\boxed{72 \\text{ clips}}", "correct"),
        ("\\boxed{\\$72.00}", "correct"),
        ("\\boxed{48 + 24 = 72}", "correct"),
        ("The answer is 72 clips. There were 31 days.", "correct"),
        ("**Answer:** 72", "correct"),
        ("So she sold 48 + 24 = 72.", "correct"),
        ("<answer>７２</answer>", "correct"),
        ("<answer>\\frac{144}{2}</answer>", "correct"),
        ("first \\boxed{5}, no: \\boxed{72}", "correct"),
        ("\\boxed{-72}", "wrong"),
        ("\\boxed{7,2}", "wrong"),
        ("\\boxed{71} although 72", "wrong"),
        ("72 was wrong, it is 73", "wrong"),
        ("<answer>48 + 72</answer>", "unparsed"),
        ("<answer>7²</answer>", "wrong"),
        ("\\boxed{2^{72}}", "unparsed"),
        ("\\boxed{\\sqrt{72}}", "unparsed"),
        ("\\boxed{}", "unparsed"),
        ("\\boxed{72", "correct"),
        ("I do not know", "unparsed"),
        ("  \n", "empty"),
    ],
)
def test_gsm8k_accuracy(response: str, status: str) -> None:
    verdict = judged(Gsm8kReward(Gsm8kSection()), prompt("72"), response)
    assert verdict.status == status, verdict.detail
    assert verdict.score == (1.0 if status == "correct" else 0.0)


@pytest.mark.parametrize("reference", ["1200", "1,200", "1200.0", "He has $1,200.\n#### 1,200"])
def test_gsm8k_reads_numbers_and_worked_solutions_as_references(reference: str) -> None:
    verdict = judged(Gsm8kReward(Gsm8kSection()), prompt(reference), "\\boxed{1{,}200}")
    assert verdict.status == "correct"


def test_gsm8k_reference_solutions_are_all_correct() -> None:
    with gzip.open(DATA / "gsm8k_train.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(next(lines)) for _ in range(1000)]
    reward = Gsm8kReward(Gsm8kSection())
    prompts = [prompt(row["answer"]) for row in rows]
    reward.check(prompts)
    for form in ("{}", "#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "The answer is {}."):
        verdicts = reward.judge(prompts, [form.format(row["answer"]) for row in rows])
        assert {verdict.status.value for verdict in verdicts} == {"correct"}, form


def test_gsm8k_d1_status_tells_about_the_answer_and_parts_about_the_rest() -> None:
    reward = Gsm8kReward(Gsm8kSection(score="d1"))
    verdict = judged(reward, prompt("72"), "<reasoning>\na\n</reasoning>\n<answer>\n72\n</answer>\n")
    assert verdict.status == "correct"
    assert verdict.parts == {
        "correctness": 2.0, "integer": 0.5, "soft_format": 0.0, "strict_format": 0.5, "tags": pytest.approx(0.5),
    }  # fmt: skip
    assert judged(reward, prompt("72"), "<answer>71</answer>").status == "wrong"


@pytest.mark.parametrize(
    ("response", "status"),
    [
        ("<answer>2*4-3</answer>", "correct"),
        ("\\boxed{2 \\times 4 - 3}", "correct"),
        ("\\boxed{2 × 4 − 3 = 5}", "correct"),
        ("\\boxed{\\left(2 \\cdot 4\\right) - 3}", "correct"),
        ("\\boxed{\\frac{4}{2} + 3}", "correct"),
        ("2*4-3", "unparsed"),
        ("<answer>2*4-3 = 6</answer>", "wrong"),
        ("<answer>2*4+3</answer>", "wrong"),
        ("<answer>2*4-3+2-2</answer>", "wrong"),
        ("<answer>5</answer>", "wrong"),
        ("<answer>-3+2*4</answer>", "unparsed"),
        ("<answer>2**3-4+1</answer>", "unparsed"),
        ("<answer>4//3*2+3</answer>", "unparsed"),
        ("<answer>4.0*2-3</answer>", "unparsed"),
        ("<answer>2(4)-3</answer>", "unparsed"),
        ("<answer>__import__('os').system('true')</answer>", "unparsed"),
        ("<answer>(2*4-3</answer>", "unparsed"),
        ("<answer>3/(4-2-2)</answer>", "unparsed"),
        ("", "empty"),
    ],
)
def test_countdown_exact(response: str, status: str) -> None:
    verdict = judged(CountdownReward(CountdownSection()), prompt(numbers=[2, 3, 4], target=5), response)
    assert verdict.status == status, verdict.detail


def test_countdown_arithmetic_is_exact_not_near() -> None:
    asked = prompt(numbers=[1, 3, 3000000, 1], target=1)
    near_miss = "<answer>3/3000000+1/1</answer>"
    assert judged(CountdownReward(CountdownSection()), asked, near_miss).status == "wrong"
    assert judged(CountdownReward(CountdownSection(score="d1")), asked, near_miss).status == "correct"


@pytest.mark.parametrize("tower", ["9**9**9**9", "(9**9)**(9**9)", "9**(9**(9**9))", "2**2**9**9"])
def test_countdown_d1_answers_power_towers_at_once(tower: str) -> None:
    numbers = [int(digit) for digit in tower if digit.isdigit()]
    verdict = judged(
        CountdownReward(CountdownSection(score="d1")), prompt(numbers=numbers, target=1), f"<answer>{tower}</answer>"
    )
    assert (verdict.score, verdict.status) == (0.1, "wrong")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1**99999*2-1", 1),
        ("2**(0-1)*4", 2),
        ("7//2+1", 4),
        ("4**(1/2)", 2),
        ("(0-8)**(1/3)", None),
        ("0**(0-1)", None),
    ],
)
def test_countdown_d1_follows_python_where_it_has_a_value(expression: str, value: int | None) -> None:
    numbers = [int(run) for run in "".join(c if c.isdigit() else " " for c in expression).split()]
    verdict = judged(
        CountdownReward(CountdownSection(score="d1")),
        prompt(numbers=numbers, target=2 if value is None else value),
        f"<answer>{expression}</answer>",
    )
    assert verdict.score == (0.1 if value is None else 1.0), verdict.detail


def test_countdown_reads_nested_meta_and_json_text() -> None:
    asked = prompt("5", metadata={"numbers": "[2, 3, 4]"})
    assert judged(CountdownReward(CountdownSection()), asked, "<answer>2*4-3</answer>").status == "correct"


def test_countdown_test_items_are_solved_by_their_stored_solutions() -> None:
    rows = [json.loads(line) for line in (DATA / "countdown_test.jsonl").read_text(encoding="utf-8").splitlines()]
    reward = CountdownReward(CountdownSection())
    prompts = [prompt(row["answer"], metadata=row["metadata"]) for row in rows]
    reward.check(prompts)
    verdicts = reward.judge(prompts, [f"\\boxed{{{row['metadata']['example_solution']}}}" for row in rows])
    assert {verdict.status.value for verdict in verdicts} == {"correct"}


PUZZLE = "0000000000000000"
GRID = "1234341221434321"


@pytest.mark.parametrize(
    ("response", "status"),
    [
        (f"<answer>{GRID}</answer>", "correct"),
        ("\\boxed{2143 4321 1234 3412}", "correct"),
        ("<answer>[[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]]</answer>", "correct"),
        ("<answer>\n1 2 | 3 4\n3 4 | 1 2\n----+----\n2 1 | 4 3\n4 3 | 2 1\n</answer>", "correct"),
        (f"The grid is\n{GRID}", "correct"),
        ("<answer>1234123412341234</answer>", "wrong"),
        ("<answer>1234341221430000</answer>", "wrong"),
        ("<answer>1234</answer>", "unparsed"),
        (f"<answer>{GRID}1</answer>", "unparsed"),
        (f"Row 1 and so on: {GRID} probably", "unparsed"),
        ("", "empty"),
    ],
)
def test_sudoku_solved(response: str, status: str) -> None:
    verdict = judged(SudokuReward(SudokuSection()), prompt(puzzle=PUZZLE), response)
    assert verdict.status == status, verdict.detail


def test_sudoku_solved_wants_the_givens_kept_and_takes_any_valid_grid() -> None:
    solved, d1 = SudokuReward(SudokuSection()), SudokuReward(SudokuSection(score="d1"))
    other = f"<answer>{GRID}</answer>"
    asked = prompt("2143432112343412", puzzle="0" * 16)
    assert judged(solved, asked, other).status == "correct"
    assert judged(d1, asked, other).status == "wrong"
    assert judged(solved, prompt(puzzle="2" + "0" * 15), other).status == "wrong"


def test_sudoku_units_counts_right_rows_columns_and_boxes_that_keep_their_givens() -> None:
    reward = SudokuReward(SudokuSection(score="units"))
    rows_only = judged(reward, prompt(puzzle="0" * 16), "1234" * 4)
    assert rows_only.score == pytest.approx(4 / 12)
    assert rows_only.status == "wrong"
    full = judged(reward, prompt(puzzle=PUZZLE), GRID)
    assert (full.score, full.status) == (1.0, "correct")
    broken_given = judged(reward, prompt(puzzle="2" + "0" * 15), GRID)
    assert broken_given.score == pytest.approx(9 / 12)


def test_sudoku_d1_is_correct_only_for_the_full_score() -> None:
    reward = SudokuReward(SudokuSection(score="d1"))
    asked = prompt(GRID, puzzle="0" * 8 + GRID[8:])
    half = judged(reward, asked, f"<answer>{'1234' * 4}</answer>")
    assert half.score == pytest.approx(0.5)
    assert half.status == "wrong"
    assert judged(reward, asked, f"<answer>{GRID}</answer>").status == "correct"


def test_sudoku_train_solutions_are_all_correct() -> None:
    with gzip.open(DATA / "sudoku4x4_train.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(next(lines)) for _ in range(300)]
    prompts = [prompt(row["answer"], metadata=row["metadata"]) for row in rows]
    for score in ("solved", "units", "d1"):
        reward = SudokuReward(SudokuSection(score=score))
        reward.check(prompts)
        verdicts = reward.judge(prompts, [f"<answer>{row['answer']}</answer>" for row in rows])
        assert {verdict.status.value for verdict in verdicts} == {"correct"}


@pytest.mark.parametrize(
    ("response", "reference", "status"),
    [
        ("\\boxed{\\frac{1}{3}}", "1/3", "correct"),
        ("\\boxed{0.5}", "\\frac{1}{2}", "correct"),
        ("\\boxed{(x+1)^2}", "x^2+2x+1", "correct"),
        ("\\boxed{4}", "so $x = \\boxed{4}$", "correct"),
        ("The final answer is $7$.", "7", "correct"),
        ("\\boxed{\\text{Evelyn}}", "\\text{Evelyn}", "correct"),
        ("\\boxed{(3,4)}", "(4,3)", "wrong"),
        ("\\boxed{\\frac{1}{4}}", "1/3", "wrong"),
        ("hello", "1/3", "unparsed"),
        ("\\boxed{}", "1/3", "unparsed"),
        (" ", "1/3", "empty"),
    ],
)
def test_math_verify(math: MathReward, response: str, reference: str, status: str) -> None:
    verdict = judged(math, prompt(reference), response)
    assert verdict.status == status, verdict.detail
    assert verdict.score == (1.0 if status == "correct" else 0.0)


def test_math_reference_that_cannot_be_read_is_an_error_not_a_wrong_answer(math: MathReward) -> None:
    verdict = judged(math, prompt("$$"), "\\boxed{1}")
    assert (verdict.status, verdict.score) == ("error", None)
    assert "reference" in verdict.detail


@pytest.mark.parametrize(
    ("reward", "bare"),
    [
        (Gsm8kReward(Gsm8kSection()), prompt("no figure")),
        (Gsm8kReward(Gsm8kSection(score="d1")), prompt()),
        (CountdownReward(CountdownSection()), prompt("5", numbers="2, 3, 4")),
        (CountdownReward(CountdownSection()), prompt(numbers=[2, 3, 4])),
        (SudokuReward(SudokuSection()), prompt(GRID)),
        (SudokuReward(SudokuSection(score="d1")), prompt("123", puzzle="0" * 16)),
        (MathReward(MathSection(score="d1")), prompt(" ")),
    ],
)
def test_check_names_the_rows_that_lack_something(reward: Reward, bare: Prompt) -> None:
    with pytest.raises(UserError, match="row-1") as caught:
        reward.check([bare] * 8)
    assert len(caught.value.problems) == 6
    assert "3 more rows" in str(caught.value)
