"""Finding and reading a task's data files."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dare_core.api import Problem, UserError


def locate(name: str, folder: str | None, origin: str, task: str) -> Path:
    """The file called ``name`` in the data folder, with or without ``.gz``.

    Raises:
        UserError: it is not there; says where it was looked for and how to get it.
    """
    how = f"get it: {origin}" if origin else "its rows are described in the task's yaml file"
    if folder is None:
        message = f"task '{task}' reads {name}, and no data folder is given"
        raise UserError(Problem(message, path="eval.data_folder", hint=f"--data FOLDER; {how}"))
    wanted = Path(folder) / name
    other = wanted.with_suffix("") if wanted.suffix == ".gz" else wanted.with_name(f"{wanted.name}.gz")
    for path in (wanted, other):
        if path.is_file():
            return path
    message = f"task '{task}' reads {name}; looked for {wanted} and {other.name}"
    raise UserError(Problem(message, path="eval.data_folder", hint=how))


def read_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(file:line, row) of a file of JSON lines.

    Raises:
        UserError: it cannot be read, or a line is no JSON object.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", _row(line, f"{path}:{number}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(Problem(f"cannot be read: {error}", where=str(path))) from error


def content_hash(path: Path) -> str:
    """SHA-256 of the rows as text, so that compressing a file changes nothing."""
    digest = hashlib.sha256()
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _row(line: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(Problem(f"not JSON: {error}", where=where)) from error
    if not isinstance(row, Mapping):
        raise UserError(Problem("must be a JSON object", where=where))
    return row
