"""Denoising as it happens: in the terminal, and in a file.

A terminal shows responses with a cell per position, redrawn after every forward: masked cells as ``░``, committed
tokens as text whose colour runs from red (unsure) to green (sure). Without colour (``NO_COLOR``) the cells stay. Where
output is no terminal, one line per forward is written, without control characters.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from dare_core.types import DenoisingStep, Watch

Watching = Annotated[bool, typer.Option("--watch", help="Show the denoising on standard error.")]
Trace = Annotated[Path | None, typer.Option("--trace", help="File for the denoising: a JSON line per row and forward.")]
Decode = Callable[[Sequence[int]], str]
MASK = "░"
#: xterm colours from unsure to sure
_COLOURS = (196, 202, 208, 214, 220, 190, 154, 118, 82, 46)


class LiveView:
    """The first rows of a call, redrawn after every forward.

    Args:
        decode: token ids -> text.
        names: of the rows.
        stream: where to write.
        rows: rows shown.
    """

    def __init__(self, decode: Decode, names: Sequence[str], stream: TextIO, rows: int = 4) -> None:
        self._decode, self._names, self._stream, self._rows = decode, names, stream, rows
        self._terminal = stream.isatty()
        self._coloured = self._terminal and not os.environ.get("NO_COLOR")
        self._shown: dict[int, str] = {}
        self._drawn = 0

    def __call__(self, step: DenoisingStep) -> None:
        """Show a forward."""
        for at, row in enumerate(step.row.tolist()):
            if row >= self._rows:
                continue
            cells = self._cells(step, at)
            if self._terminal:
                self._shown[row] = cells
            else:
                count, forward = int(step.changed[at].sum()), int(step.forward[at]) + 1
                self._stream.write(f"{self._names[row]}  forward {forward}, {count} committed: {cells}\n")
        if self._terminal:
            self._redraw()
            if bool(step.finished.all()):
                self._shown, self._drawn = {}, 0

    def _cells(self, step: DenoisingStep, at: int) -> str:
        tokens, decided = step.tokens[at].tolist(), step.decided[at].tolist()
        probability = step.probability[at].tolist()
        columns = step.response[at].nonzero()[:, 0].tolist()
        return "".join(self._cell(tokens[c], probability[c]) if decided[c] else MASK for c in columns)

    def _cell(self, token: int, probability: float) -> str:
        text = self._decode([token]).replace("\r", "").replace("\n", "↵").replace("\t", " ").replace("\x1b", "")
        if not self._coloured or not text:
            return text
        colour = _COLOURS[min(int(probability * len(_COLOURS)), len(_COLOURS) - 1)]
        return f"\x1b[38;5;{colour}m{text}\x1b[0m"

    def _redraw(self) -> None:
        width = max(20, shutil.get_terminal_size().columns)
        lines = [line for row in sorted(self._shown) for line in wrapped(self._shown[row], width)]
        above = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._stream.write(f"{above}\x1b[J" + "\n".join(lines) + "\n")
        self._stream.flush()
        self._drawn = len(lines)


def wrapped(cells: str, width: int) -> list[str]:
    """Lines of at most ``width`` visible characters; colour sequences take no room."""
    lines, line, used, at = [], "", 0, 0
    while at < len(cells):
        end = cells.index("m", at) + 1 if cells[at] == "\x1b" else at + 1
        if end == at + 1:
            if used == width:
                lines.append(line)
                line, used = "", 0
            used += 1
        line, at = line + cells[at:end], end
    return [*lines, line]


class TraceFile:
    """A JSON line per row and forward: what was written where, with its probability.

    Args:
        decode: token ids -> text.
        rows: id and sample of every row.
        stream: where to write.
    """

    def __init__(self, decode: Decode, rows: Sequence[tuple[str, int]], stream: TextIO) -> None:
        self._decode, self._rows, self._stream = decode, rows, stream

    def __call__(self, step: DenoisingStep) -> None:
        """Write a forward."""
        for at, row in enumerate(step.row.tolist()):
            name, sample = self._rows[row]
            start = int(step.response[at].nonzero()[0, 0])
            commits = [self._commit(step, at, column, start) for column in step.changed[at].nonzero()[:, 0].tolist()]
            line = {"id": name, "sample": sample, "forward": int(step.forward[at]), "commits": commits}
            self._stream.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _commit(self, step: DenoisingStep, at: int, column: int, start: int) -> dict[str, Any]:
        token = int(step.tokens[at, column])
        return {
            "position": column - start,
            "token_id": token,
            "text": self._decode([token]),
            "probability": round(float(step.probability[at, column]), 6),
        }


@contextmanager
def watching(
    decode: Decode, rows: Sequence[tuple[str, int]], *, live: bool, trace: Path | None, stream: TextIO | None = None
) -> Iterator[Watch | None]:
    """What a decoder calls after every forward; None if nobody watches.

    Args:
        decode: token ids -> text.
        rows: id and sample of every row.
        live: show the first rows.
        trace: file for everything.
        stream: where the live view goes; default: standard error.
    """
    seen: list[Watch] = []
    if live:
        several = any(sample for _, sample in rows)
        names = [f"{name} #{sample}" if several else name for name, sample in rows]
        seen.append(LiveView(decode, names, stream or sys.stderr))
    if trace is None:
        yield _all(seen)
        return
    with trace.open("w", encoding="utf-8") as file:
        yield _all([*seen, TraceFile(decode, rows, file)])


def _all(seen: Sequence[Watch]) -> Watch | None:
    if not seen:
        return None

    def call(step: DenoisingStep) -> None:
        for one in seen:
            one(step)

    return call
