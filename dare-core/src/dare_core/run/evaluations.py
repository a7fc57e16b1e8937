"""The folder of one evaluation: protocol.json, each shard's items as they finish, then items.jsonl and result.json.

Items are appended one line each, so a kill costs at most the items in flight. What counts as done is what lies in any
shard's file; the number of shards may differ between calls. ``items.jsonl`` is sorted by the order of the task, so it
is the same file however it came about.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dare_core.errors import Problem, UserError
from dare_core.run.atomic import finite, write_json, write_json_lines
from dare_core.run.lock import FolderLock

PROTOCOL, ITEMS, RESULT, SHARDS = "protocol.json", "items.jsonl", "result.json", "shards"
EVALUATOR = "evaluator.json"
HASH = "hash"
#: differing keys that an error names before it counts
SHOWN = 8


class EvaluationFolder:
    """One task's evaluation of one model."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, protocol: Mapping[str, Any], evaluator: Mapping[str, Any]) -> None:
        """Write the protocol, or see that it is the one whose items lie here.

        Args:
            protocol: everything the scores depend on.
            evaluator: kind and options, to build the evaluator again; no part of the protocol, since it names paths.

        Raises:
            UserError: the folder holds items of another protocol; names what differs.
        """
        hashed = with_hash(protocol)
        if not (self.path / PROTOCOL).exists():
            write_json(self.path / EVALUATOR, evaluator)
            write_json(self.path / PROTOCOL, hashed)
            return
        found = differences(self.protocol(), hashed)
        if found:
            lines = [f"{key}: {_shown(there)} there, {_shown(here)} here" for key, (there, here) in found.items()]
            more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
            message = f"holds items of another protocol ({'; '.join([*lines[:SHOWN], *more])})"
            hint = "name another folder with --output, or remove this one"
            raise UserError(Problem(message, where=str(self.path), hint=hint))

    def protocol(self) -> dict[str, Any]:
        """The protocol, hash included.

        Raises:
            UserError: this is no evaluation folder.
        """
        return _read(self.path / PROTOCOL)

    def evaluator(self) -> dict[str, Any]:
        """Kind and options of the evaluator.

        Raises:
            UserError: this is no evaluation folder.
        """
        return _read(self.path / EVALUATOR)

    def result(self) -> dict[str, Any]:
        """The result of a finished evaluation.

        Raises:
            UserError: it is not finished, or this is no evaluation folder.
        """
        self.protocol()
        if not (self.path / RESULT).exists():
            hint = "run the same command again to go on"
            raise UserError(Problem("is not finished: there is no result.json", where=str(self.path), hint=hint))
        return _read(self.path / RESULT)

    def items(self) -> list[dict[str, Any]]:
        """The items of a finished evaluation.

        Raises:
            UserError: it is not finished.
        """
        self.result()
        return list(_lines(self.path / ITEMS))

    def done(self) -> dict[str, dict[str, Any]]:
        """Finished items by key, of all shards. A line cut short by a kill is not there."""
        files = [self.path / ITEMS, *sorted((self.path / SHARDS).glob("*.jsonl"))]
        return {item["key"]: item for file in files if file.exists() for item in _lines(file)}

    @contextmanager
    def writing(self, shard: int, of: int) -> Iterator[Path]:
        """Hold a shard for writing; gives the file to append to, its last line whole.

        Raises:
            UserError: another process writes this shard.
        """
        folder = self.path / SHARDS / f".{shard}-of-{of}"
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        try:
            file = self.path / SHARDS / f"{shard}-of-{of}.jsonl"
            _drop_cut_line(file)
            yield file
        finally:
            lock.release()

    @staticmethod
    def append(file: Path, item: Mapping[str, Any]) -> None:
        """Add one finished item to a shard's file."""
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(finite(item), ensure_ascii=False, allow_nan=False) + "\n")
            out.flush()
            os.fsync(out.fileno())

    def finish(self, items: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> None:
        """Write all items, then the result."""
        write_json_lines(self.path / ITEMS, [finite(item) for item in items])
        write_json(self.path / RESULT, finite(result))


def with_hash(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol as plain JSON data with ``hash``, the SHA-256 of everything else in it."""
    plain: dict[str, Any] = json.loads(json.dumps(finite(protocol), sort_keys=True, default=str))
    plain.pop(HASH, None)
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return plain | {HASH: hashlib.sha256(text.encode()).hexdigest()}


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ -> both values; None stands for a key that is not there. Hashes aside."""
    flat_left, flat_right = dict(_flat(left)), dict(_flat(right))
    return {
        key: (flat_left.get(key), flat_right.get(key))
        for key in sorted(flat_left.keys() | flat_right.keys())
        if key != HASH and flat_left.get(key) != flat_right.get(key)
    }


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(Problem(f"no evaluation lies here: {error}", where=str(path))) from error


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    *whole, _ = path.read_text(encoding="utf-8").split("\n")  # what follows the last line break was cut by a kill
    for line in whole:
        yield json.loads(line)


def _drop_cut_line(path: Path) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
