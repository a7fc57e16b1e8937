"""Data as OpenCompass wants it: its own layout where it lies there, else made from our packed files."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dare_core.api import Problem, UserError
from dare_eval_opencompass.benchmarks import Benchmark

#: benchmarks whose files can be made from ours: OpenCompass's file -> ours
PACKED = {"data/gsm8k/test.jsonl": "gsm8k_test.jsonl", "data/gsm8k/train.jsonl": "gsm8k_train.jsonl"}
LETTERS = "ABCDEFGHIJKLMNOP"


def data_root(name: str, benchmark: Benchmark, folder: str | None, work: Path) -> tuple[Path, dict[str, str]]:
    """Where OpenCompass finds the data, and the files' hashes; files made from ours lie in ``work``.

    Raises:
        UserError: files are missing; says where they were looked for.
    """
    if folder is None:
        if not benchmark.files and benchmark.rows is None:
            return work, {}
        message = (
            f"benchmark '{name}' reads {', '.join(benchmark.files) or benchmark.rows}, and no data folder is given"
        )
        raise UserError(Problem(message, path="eval.data_folder", hint="--data FOLDER"))
    root = Path(folder).resolve()
    if benchmark.rows is not None:
        return work, {benchmark.rows: _hash(_choices(root, benchmark.rows, work))}
    missing = [file for file in benchmark.files if not (root / file).exists()]
    if not missing:
        return root, {file: _hash(root / file) for file in benchmark.files if (root / file).is_file()}
    packed = {file: _packed(root, PACKED[file]) for file in benchmark.files if file in PACKED}
    if not packed or any(path is None for path in packed.values()):
        looked = ", ".join(str(root / file) for file in missing)
        also = " or ".join(PACKED[file] for file in missing if file in PACKED)
        hint = "lay the files out as OpenCompass does" + (f", or give a folder with {also}" if also else "")
        raise UserError(Problem(f"benchmark '{name}' lacks {looked}", path="eval.data_folder", hint=hint))
    for file, path in packed.items():
        _write(work / file, ({"question": row["prompt"], "answer": f"#### {row['answer']}"} for row in _rows(path)))
    return work, {file: _hash(work / file) for file in packed}


def letters_of(root: Path) -> list[str]:
    """Option letters of the multiple-choice rows in ``root``."""
    rows = list(_rows(root / "choices.jsonl"))
    return sorted({letter for row in rows for letter in LETTERS if letter in row})


def _choices(root: Path, name: str, work: Path) -> Path:
    path = _packed(root, name)
    if path is None:
        raise UserError(Problem(f"looked for {root / name}", path="eval.data_folder", hint="rows with prompt, choices"))
    _write(work / "choices.jsonl", (_lettered(row, number, path) for number, row in enumerate(_rows(path), start=1)))
    return work / "choices.jsonl"


def _lettered(row: Mapping[str, Any], number: int, path: Path) -> dict[str, Any]:
    choices, answer = row.get("choices"), str(row.get("answer", ""))
    question = row.get("prompt", row.get("question"))
    if not question or not isinstance(choices, list) or answer not in list(LETTERS[: len(choices)]):
        message = "needs 'prompt' (or 'question'), 'choices' (a list) and 'answer', a letter of one of them"
        raise UserError(Problem(message, where=f"{path}:{number}"))
    return {"question": question, **dict(zip(LETTERS, choices, strict=False)), "answer": answer}


def _packed(root: Path, name: str) -> Path | None:
    return next((path for path in (root / name, root / f"{name}.gz") if path.is_file()), None)


def _rows(path: Path | None) -> Iterator[Mapping[str, Any]]:
    if path is None:
        return
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def _write(path: Path, rows: Iterator[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
