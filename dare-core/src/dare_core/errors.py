"""Errors that reach people: what was given, where, what is allowed, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a user's input.

    Attributes:
        message: what was given and what is allowed, in one sentence.
        path: dotted path of the value in the spec, if there is one (``algorithm.clip_range``).
        where: ``file:line`` or a row or sample id, if known.
        hint: what to do about it.
    """

    message: str
    path: str | None = None
    where: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        head = ": ".join(part for part in (self.where, self.path, self.message) if part)
        return f"{head}; {self.hint}" if self.hint else head


class DareError(Exception):
    """Base of all errors raised on purpose. ``exit_code`` is what the command line returns."""

    exit_code = 1


class UserError(DareError):
    """The user's input is wrong: spec, data, model folder, arguments. Carries every problem found."""

    exit_code = 2

    def __init__(self, problems: Problem | str | Iterable[Problem | str]) -> None:
        if isinstance(problems, (str, Problem)):
            problems = [problems]
        self.problems = tuple(p if isinstance(p, Problem) else Problem(p) for p in problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class PluginError(DareError):
    """A plugin breaks its contract, found while it was being used."""


class NonFiniteError(DareError):
    """A loss, score, gradient or weight is NaN or infinite. The message names tensor, step and sample.

    Attributes:
        what: the tensor or module that is not finite.
        rows: indices of the rows concerned within the batch, where known; the update turns them into sample ids.
    """

    def __init__(self, what: str, rows: Iterable[int] = ()) -> None:
        self.what = what
        self.rows = tuple(rows)
        super().__init__(what)
