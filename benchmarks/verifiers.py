"""Verdicts per second of the verifiers in dare-eval: ``python benchmarks/verifiers.py [--answers 1000]``.

Responses are the stored reference solutions in the form each rule reads, one in four spoiled, so that correct and wrong
answers are both timed. The last lines time how long a hostile answer holds up the pool.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from dare_core.interfaces import Reward
from dare_core.types import Prompt
from dare_eval.config import CountdownSection, Gsm8kSection, MathSection, SudokuSection
from dare_eval.countdown import CountdownReward
from dare_eval.gsm8k import Gsm8kReward
from dare_eval.math_reward import MathReward
from dare_eval.sudoku import SudokuReward

DATA = Path(__file__).parents[1] / "examples" / "data"


def read(name: str, count: int) -> list[dict[str, Any]]:
    path = DATA / name
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, count)]
    return [rows[index % len(rows)] for index in range(count)]


def measured(count: int) -> Iterator[tuple[str, Reward, list[Prompt], list[str]]]:
    """Name, reward, prompts and responses of each measurement."""
    solutions = read("sft_gsm8k_train.jsonl.gz", count)
    prompts = [Prompt(r["id"], i, text=r["prompt"], reference=r["answer"]) for i, r in enumerate(solutions)]
    worked = [row["answer"] for row in solutions]
    yield "gsm8k accuracy", Gsm8kReward(Gsm8kSection()), prompts, worked
    finals = [
        Prompt(r["id"], i, text=r["prompt"], reference=r["metadata"]["final_answer"]) for i, r in enumerate(solutions)
    ]
    boxed = [f"{r['answer'].rpartition('####')[0]}\\boxed{{{r['metadata']['final_answer']}}}" for r in solutions]
    tagged = [f"<answer>\n{row['metadata']['final_answer']}\n</answer>\n" for row in solutions]
    yield "gsm8k d1", Gsm8kReward(Gsm8kSection(score="d1")), finals, tagged
    for score in ("math-verify", "dare", "d1"):
        yield f"math {score}", MathReward(MathSection(score=score)), finals, boxed
    yield from _puzzles(count)


def _puzzles(count: int) -> Iterator[tuple[str, Reward, list[Prompt], list[str]]]:
    rows = read("countdown_test.jsonl", count)
    prompts = [Prompt(r["id"], i, text=r["prompt"], meta=r["metadata"]) for i, r in enumerate(rows)]
    answers = [f"<answer>{row['metadata']['example_solution']}</answer>" for row in rows]
    for score in ("exact", "d1"):
        yield f"countdown {score}", CountdownReward(CountdownSection(score=score)), prompts, answers
    rows = read("sudoku4x4_train.jsonl.gz", count)
    prompts = [
        Prompt(r["id"], i, text=r["prompt"], reference=r["answer"], meta=r["metadata"]) for i, r in enumerate(rows)
    ]
    answers = [f"<answer>{row['answer']}</answer>" for row in rows]
    for score in ("solved", "d1"):
        yield f"sudoku {score}", SudokuReward(SudokuSection(score=score)), prompts, answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=1000, help="responses per rule")
    count = parser.parse_args().answers
    print(f"{'rule':<18} {'answers':>8} {'seconds':>8} {'per second':>11}  verdicts")
    for name, reward, prompts, responses in measured(count):
        mixed = [
            text if index % 4 else f"{text} <answer>0</answer> #### 0 \\boxed{{0}}"
            for index, text in enumerate(responses)
        ]
        with closing(reward):
            start = time.perf_counter()
            verdicts = reward.judge(prompts, mixed)
            seconds = time.perf_counter() - start
        counts = dict(Counter(verdict.status.value for verdict in verdicts))
        print(f"{name:<18} {count:>8} {seconds:>8.3f} {count / seconds:>11.0f}  {counts}")
    start = time.perf_counter()
    with closing(MathReward(MathSection())) as reward:
        print(f"start of two workers: {time.perf_counter() - start:.2f} s")
        asked = [Prompt("tower", 0, text="q", reference="1/3")]
        for response in (r"\boxed{9^{9^{9^{9}}}}", r"\boxed{\frac{1}{3}}"):
            start = time.perf_counter()
            [verdict] = reward.judge(asked, [response])
            print(f"{response}: {verdict.status} after {time.perf_counter() - start:.2f} s (limit 5 s)")


if __name__ == "__main__":
    main()
