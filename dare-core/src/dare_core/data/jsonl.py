"""JSON lines, plain or gzip."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dare_core.data.files import hash_files
from dare_core.errors import Problem, UserError
from dare_core.interfaces.data import DataSource

if TYPE_CHECKING:
    from dare_core.data.config import JsonLinesSection

_GZIP_MAGIC = b"\x1f\x8b"
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


class JsonLines(DataSource):
    """One JSON object per line; blank lines are skipped; gzip is recognised by content, not by name."""

    config: JsonLinesSection

    def rows(self) -> Iterator[tuple[str, Mapping[str, Any] | Problem]]:
        """See :meth:`DataSource.rows`. A line that is not a JSON object is given as a problem."""
        for path in self.config.files():
            yield from _read(path)

    def fingerprint(self) -> str:
        """Hash of the files as they are on disk."""
        return hash_files(self.config.files())


def _read(path: Path) -> Iterator[tuple[str, Mapping[str, Any] | Problem]]:
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP_MAGIC
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}:{number}"
                if line.strip():
                    yield where, _parse(line, where)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(Problem(f"cannot be read: {error}", where=str(path))) from error


def _parse(line: bytes, where: str) -> Mapping[str, Any] | Problem:
    try:
        text = line.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_twice)
    except ValueError as error:
        return Problem(f"not JSON: {error}", where=where)
    except RecursionError:
        return Problem("not JSON that can be read: nested too deeply", where=where)
    if not isinstance(value, dict):
        return Problem(f"a line must hold one JSON object, not {type(value).__name__}", where=where)
    if b"\\u" in line and _LONE_SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        return Problem("text holds a lone surrogate (\\ud800 to \\udfff), which is no character", where=where)
    return value


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's fields; of two values for one field neither is the right one."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field '{twice}' is given twice")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
