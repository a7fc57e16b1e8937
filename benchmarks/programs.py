"""Time to judge generated programs: ``python benchmarks/programs.py [--workers 2]``.

Runs the reference solutions of the HumanEval and MBPP rows in examples/data, a fresh fenced process each.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from dare_core.types import Prompt
from dare_eval.config import CodeSection
from dare_eval.scoring.python_judges import build_python_judge
from dare_eval.tasks.files import read_rows

DATA = Path(__file__).parents[1] / "examples" / "data"


def humaneval() -> tuple[list[Prompt], list[str]]:
    rows = [row for _, row in read_rows(DATA / "humaneval_test.jsonl.gz")]
    prompts = [
        Prompt(
            row["id"],
            number,
            text="",
            meta={"stub": row["prompt"], "tests": row["tests"], "entry_point": row["metadata"]["entry_point"]},
        )
        for number, row in enumerate(rows)
    ]
    return prompts, [row["metadata"]["canonical_solution"] for row in rows]


def mbpp() -> tuple[list[Prompt], list[str]]:
    rows = [row for _, row in read_rows(DATA / "mbpp_test.jsonl.gz")][:100]
    prompts = [
        Prompt(row["id"], number, text="", meta={"tests": row["tests"], "setup": row["metadata"]["test_setup_code"]})
        for number, row in enumerate(rows)
    ]
    return prompts, [row["metadata"]["reference_code"] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    limits = CodeSection(workers=parser.parse_args().workers)
    for name, rule, (prompts, codes) in (
        ("HumanEval", "python-function", humaneval()),
        ("MBPP", "python-tests", mbpp()),
    ):
        judge = build_python_judge(rule, {}, limits)
        start = time.perf_counter()
        judged = judge.judge(prompts, codes)
        seconds = time.perf_counter() - start
        judge.close()
        passed = sum(one.score == 1 for one in judged)
        print(f"{name}: {len(judged)} programs, {passed} passed, {seconds:.1f} s, fenced by: {judge.isolation}")


if __name__ == "__main__":
    main()
