"""Problems as people read them: nearest names, one line each, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from dare_core.errors import Problem


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was probably meant to be."""
    found = get_close_matches(name.lower(), list(dict.fromkeys(known)), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Sequence[str], *, what: str = "known") -> str:
    """A hint for an unknown name: the nearest known one, or all of them."""
    near = nearest(name, known)
    if near is not None:
        return f"did you mean '{near}'?"
    return f"{what}: {', '.join(sorted(known))}" if known else f"{what}: none"


def joined(words: Sequence[str], last: str = "or") -> str:
    """``a, b or c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""


def in_file_order(problems: Iterable[Problem], files: Sequence[str]) -> list[Problem]:
    """Without repetitions, sorted by file and line; what is not in a file comes last."""

    def place(problem: Problem) -> tuple[int, int]:
        name, _, line = (problem.where or "").rpartition(":")
        if name in files and line.isdecimal():
            return files.index(name), int(line)
        if problem.where in files:
            return files.index(problem.where), 0
        return len(files), 0

    return sorted(dict.fromkeys(problems), key=place)
