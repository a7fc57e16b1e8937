"""What data, rewards and people exchange: text, not tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn. ``role`` is ``system``, ``user``, ``assistant`` or a family's own word."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question put to the model.

    Attributes:
        id: stable id of the row it was made from.
        index: position of that row in its data set, from 0; addresses random draws.
        messages: chat turns, rendered by the model's template; empty if ``text`` is given.
        text: plain text, tokenised as it is; None if ``messages`` are given.
        reference: what a verifier compares with, or None.
        meta: further fields of the row that a verifier may read.
    """

    id: str
    index: int
    messages: tuple[Message, ...] = ()
    text: str | None = None
    reference: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.messages) == (self.text is not None):
            raise ValueError(f"prompt {self.id!r} must hold either messages or text")


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A prompt with the answer to learn (plain text, without special tokens).

    Attributes:
        prompt: what precedes the answer.
        completion: the answer.
        earlier: turns of ``prompt.messages``, by index and rising, that are answers to learn as well.
    """

    prompt: Prompt
    completion: str
    earlier: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        turns = self.prompt.messages
        if list(self.earlier) != sorted(set(self.earlier)):
            raise ValueError(f"demonstration {self.prompt.id!r}: earlier turns {self.earlier} must rise")
        if any(not 0 < turn < len(turns) or turns[turn].role != "assistant" for turn in self.earlier):
            raise ValueError(f"demonstration {self.prompt.id!r}: earlier turns {self.earlier} must be the assistant's")

    def up_to(self, turn: int) -> Demonstration:
        """The answer at index ``turn`` of the conversation alone, with what precedes it."""
        if turn == len(self.prompt.messages):
            return replace(self, earlier=())
        turns = self.prompt.messages
        return Demonstration(replace(self.prompt, messages=turns[:turn]), turns[turn].content)


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with a preferred and a dispreferred answer."""

    prompt: Prompt
    chosen: str
    rejected: str

    def __post_init__(self) -> None:
        if self.chosen == self.rejected:
            raise ValueError(f"pair {self.prompt.id!r}: chosen and rejected are equal, so there is nothing to prefer")


class VerdictStatus(StrEnum):
    """How a verdict came about. Only ``error`` means that the verifier itself failed."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    TIMEOUT = "timeout"
    ERROR = "error"
    EMPTY = "empty"
    NOT_APPLICABLE = "not-applicable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reward's judgement of one response.

    Attributes:
        score: the reward; None for ``error`` and ``not-applicable``, which never enter an average.
        status: see :class:`VerdictStatus`; graded rewards use ``correct`` only for the full score.
        detail: one line for people, e.g. the extracted answer.
        parts: scores of the parts of a combined reward, by kind.
        prefix_scores: scores of intermediate guesses, oldest first, where the reward provides ``prefix``.
    """

    score: float | None
    status: VerdictStatus
    detail: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    prefix_scores: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        scoreless = self.status in (VerdictStatus.ERROR, VerdictStatus.NOT_APPLICABLE)
        if scoreless != (self.score is None):
            raise ValueError(f"a verdict with status {self.status} must have {'no' if scoreless else 'a'} score")
