"""Every recorded extraction and score is reproduced under the rule it names."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dare_core.types import Prompt, VerdictStatus
from dare_eval.sampling_metrics import g_pass_at_k, mg_pass_at_k, pass_at_k
from dare_eval.scoring import code_text
from dare_eval.scoring.judges import Judge, Judged, build_judge
from dare_eval.scoring.puzzle_rules import puzzle_of
from dare_eval.scoring.rules import TEXT_RULES

NAME = "evaluation_scoring_cases.jsonl.gz"
Row = Mapping[str, Any]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "scored_rule" not in metafunc.fixturenames:
        return
    root = Path(metafunc.config.getoption("--goldens") or Path(__file__).parent / "data")
    rows: dict[str, list[Row]] = {}
    wanted = metafunc.config.getoption("--needed-by") in (None, "evaluation")
    for path in sorted(root.rglob(NAME)) if wanted else ():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                rows.setdefault(row["rule"], []).append(row)
    metafunc.parametrize("scored_rule", list(rows.items()), ids=list(rows))


@pytest.fixture(scope="module")
def judges() -> Iterator[Callable[..., Judge]]:
    built: dict[str, Judge] = {}

    def judge_called(name: str, **options: Any) -> Judge:
        if name not in built:
            built[name] = build_judge(name, options)
        return built[name]

    yield judge_called
    for judge in built.values():
        judge.close()


def judged(judge: Judge, row: Row) -> Judged:
    meta: dict[str, Any] = {}
    reference = row.get("reference")
    if "countdown" in row["rule"]:
        meta["numbers"], meta["target"] = reference if reference is not None else (row["numbers"], row["target"])
        reference = str(meta["target"])
    if "sudoku" in row["rule"]:
        meta["puzzle"] = row.get("puzzle") or puzzle_of(row["question"])
    prompt = Prompt(row["id"], 0, text="", reference=None if reference is None else str(reference), meta=meta)
    found = judge.judge([prompt], [row["input"]])[0]
    assert found.status is not VerdictStatus.ERROR, f"{row['id']}: {found.detail}"
    return found


def right(found: Judged) -> bool:
    return found.score == 1


def test_evaluation_scores_are_reproduced(scored_rule: tuple[str, list[Row]], judges: Callable[..., Judge]) -> None:
    rule, rows = scored_rule
    for row in rows:
        CHECKS[rule](row, judges)


def extracted_and_correct(name: str) -> Callable[[Row, Callable[..., Judge]], None]:
    def check(row: Row, judges: Callable[..., Judge]) -> None:
        found = judged(judges(name), row)
        assert (found.answer, right(found)) == (row["extracted"], row["correct"]), row["id"]

    return check


def harness(row: Row, judges: Callable[..., Judge]) -> None:
    for variant in ("strict", "flexible"):
        found = judged(judges(f"lm-eval-gsm8k-{variant}"), row)
        answer = "[invalid]" if found.answer is None else found.answer
        assert (answer, right(found)) == (row["extracted"][variant], row["correct"][variant]), row["id"]


def d1_gsm8k(row: Row, judges: Callable[..., Judge]) -> None:
    found = judged(judges("d1-gsm8k"), row)
    number = None if found.answer is None else float(found.answer)
    assert (number, right(found)) == (row["extracted"], row["correct"]), row["id"]


def math_verify(row: Row, judges: Callable[..., Judge]) -> None:
    assert right(judged(judges("math"), row)) == row["correct"], row["id"]


def scored(name: str) -> Callable[[Row, Callable[..., Judge]], None]:
    def check(row: Row, judges: Callable[..., Judge]) -> None:
        found = judged(judges(name), row)
        nothing = "" if "sudoku" in name else None  # how each published function reports that it found none
        assert (nothing if found.answer is None else found.answer) == row["extracted"], row["id"]
        assert found.score == pytest.approx(row["score"], abs=1e-9), row["id"]

    return check


def d1_sudoku(row: Row, judges: Callable[..., Judge]) -> None:
    found = judged(judges("d1-sudoku"), row)
    assert (found.answer or "") == row["extracted"], row["id"]
    cells = puzzle_of(row["question"])
    assert cells is not None
    assert found.parts.get("cells_right", 0.0) == row["cells_correct"], row["id"]
    assert cells.count("0") == row["cells_empty"], row["id"]


def letter(row: Row, judges: Callable[..., Judge]) -> None:
    answer = TEXT_RULES["oc-answer-letter-pattern"].read(row["input"], Prompt(row["id"], 0, text=""))
    assert (answer or "") == row["extracted"], row["id"]


def code(read: Callable[[str], str]) -> Callable[[Row, Callable[..., Judge]], None]:
    def check(row: Row, judges: Callable[..., Judge]) -> None:
        assert read(row["input"]) == row["extracted"], row["id"]

    return check


def value(metric: Callable[..., float | None], *names: str) -> Callable[[Row, Callable[..., Judge]], None]:
    def check(row: Row, judges: Callable[..., Judge]) -> None:
        got = metric(*(row[name] for name in ("n", "c", "k", *names)))
        if row["value"] is None:
            assert got is None, row["id"]
        else:
            assert got is not None, row["id"]
            assert math.isclose(got, row["value"], rel_tol=0, abs_tol=1e-9), row["id"]

    return check


CHECKS: Mapping[str, Callable[[Row, Callable[..., Judge]], None]] = {
    "oc_gsm8k": extracted_and_correct("oc-gsm8k"),
    "lm_eval_gsm8k": harness,
    "d1_gsm8k": d1_gsm8k,
    "oc_math_v2": extracted_and_correct("oc-math-v2"),
    "d1_math500": extracted_and_correct("d1-math500"),
    "math_verify": math_verify,
    "oc_humaneval_v2": code(code_text.first_block),
    "oc_mbpp_extract": code(code_text.marked_block),
    "oc_answer_letter_pattern": letter,
    "d1_countdown": extracted_and_correct("d1-countdown"),
    "dare_countdown_reward": scored("dare-countdown"),
    "d1_sudoku": d1_sudoku,
    "dare_sudoku_reward": scored("dare-sudoku"),
    "pass_at_k": value(pass_at_k),
    "g_pass_at_k": value(g_pass_at_k, "threshold"),
    "mg_pass_at_k": value(mg_pass_at_k),
}
