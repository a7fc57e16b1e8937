"""Rows of the two tasks on which learning is shown, made from the files in ``examples/data``.

Sudoku: the puzzle's 16 digits. Countdown: problems of three two-digit numbers that plus and minus solve. What is
fine-tuned on is not trained on again, and neither is evaluated on.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
#: share of a task's training rows that fine-tuning learns from; the other rows are for rewards
DEMONSTRATED = 0.5
HELD_OUT = 128

Row = dict[str, Any]


def write_rows(folder: Path) -> None:
    """Write ``<task>-{sft,rl,heldout}.jsonl`` for both tasks, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, (training, held_out) in {"sudoku": sudoku(), "countdown": countdown()}.items():
        split = int(len(training) * DEMONSTRATED)
        demonstrations = training[:split]
        if task == "countdown":
            demonstrations = [other for row in demonstrations for other in reordered(row)]
        for part, rows in (("sft", demonstrations), ("rl", training[split:]), ("heldout", held_out[:HELD_OUT])):
            path = folder / f"{task}-{part}.jsonl"
            if not path.exists():
                path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def sudoku() -> tuple[list[Row], list[Row]]:
    """Training and held-out rows; prompts are the 16 digits alone."""
    training, held_out = (
        [
            {"id": row["id"], "prompt": row["metadata"]["puzzle"], "answer": row["answer"]}
            | {"puzzle": row["metadata"]["puzzle"]}
            for row in read(EXAMPLES / name)
        ]
        for name in ("sudoku4x4_train.jsonl.gz", "sudoku4x4_test_disjoint.jsonl")
    )
    return training, held_out


def countdown() -> tuple[list[Row], list[Row]]:
    """Training and held-out rows; prompts read ``44 19 35 98``, the target last."""
    training, held_out = (
        [
            row
            for old in read(EXAMPLES / name)
            if (row := countdown_row(old["id"], old["metadata"]["numbers"], old["metadata"]["target"])) is not None
        ]
        for name in ("countdown_train.jsonl.gz", "countdown_test.jsonl")
    )
    return training, held_out


def countdown_row(name: str, numbers: Sequence[int], target: int) -> Row | None:
    """The problem with its first solution; None if it is not of this task."""
    if len(numbers) != 3 or not all(9 < value < 100 for value in (*numbers, target)):
        return None
    answer = sum_of(numbers, target)
    if answer is None:
        return None
    prompt = " ".join(str(value) for value in (*numbers, target))
    return {"id": name, "prompt": prompt, "answer": answer, "numbers": list(numbers), "target": target}


def reordered(row: Row) -> Iterator[Row]:
    """The problem with its numbers in each order."""
    for place, numbers in enumerate(itertools.permutations(row["numbers"])):
        other = countdown_row(f"{row['id']}-{place}", numbers, row["target"])
        if other is not None:
            yield other


def sum_of(numbers: Sequence[int], target: int) -> str | None:
    """The first way to reach the target with plus and minus, in the order of the numbers where that is possible."""
    for order in itertools.permutations(numbers):
        for signs in itertools.product((1, -1), repeat=len(order) - 1):
            if order[0] + sum(sign * value for sign, value in zip(signs, order[1:], strict=True)) == target:
                rest = (f"{'+' if sign > 0 else '-'}{value}" for sign, value in zip(signs, order[1:], strict=True))
                return f"{order[0]}{''.join(rest)}"
    return None


def read(path: Path) -> list[Row]:
    """The rows of a ``.jsonl`` or ``.jsonl.gz`` file."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines() if line.strip()]
