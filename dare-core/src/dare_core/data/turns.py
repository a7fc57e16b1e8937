"""Conversations: a row's turns, and which of the assistant's are learnt.

One row may hold several answers. ``one`` is LLaDA's way (arXiv:2502.09992): a dialogue stands for as many
demonstrations as it has answers, and each step takes one of them. With ``all`` and ``marked`` several are learnt at
once; a model that sees whole rows then guesses an early answer with later turns in sight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare_core.data.fields import FieldError, field_text, read_field
from dare_core.spec.sections import TrainedTurns
from dare_core.types.examples import Message

_ANSWERS = "assistant"


def read_turns(row: Mapping[str, Any], name: str) -> tuple[Message, ...]:
    """A field's list of ``{role, content}`` turns; other keys of a turn are not read.

    Raises:
        FieldError: it is no such list, or it is empty.
    """
    turns = read_field(row, name)
    if not isinstance(turns, (list, tuple)) or not turns:
        raise FieldError(f"field '{name}' must be a list of turns with role and content")
    for number, turn in enumerate(turns):
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise FieldError(f"turn {number} of field '{name}' must hold 'role' and 'content' as text")
    return tuple(Message(field_text(turn, "role"), field_text(turn, "content")) for turn in turns)


def read_marks(row: Mapping[str, Any], name: str, key: str) -> tuple[bool, ...]:
    """Whether each turn of the field is marked by ``key``; turns without it are not.

    Raises:
        FieldError: a mark is neither true nor false.
    """
    marks = [turn.get(key) for turn in read_field(row, name)]
    for number, mark in enumerate(marks):
        if mark is not None and not isinstance(mark, bool):
            raise FieldError(f"'{key}' of turn {number} of field '{name}' must be true or false, not {mark!r}")
    return tuple(bool(mark) for mark in marks)


def learnt_turns(
    turns: Sequence[Message], marks: Sequence[bool], which: TrainedTurns, name: str
) -> tuple[int, tuple[int, ...]]:
    """The last turn that is learnt, and the earlier ones; what follows the last one is no part of the row.

    Args:
        turns: the conversation.
        marks: per turn, for ``marked``.
        which: ``last``, ``all`` of the assistant's, ``marked`` ones, or ``one`` of all.
        name: of the field.

    Raises:
        FieldError: there is none, one is empty or not the assistant's, nothing precedes it, or the conversation does
            not end with an answer.
    """
    answers = [number for number, turn in enumerate(turns) if turn.role == _ANSWERS]
    if which == "marked":
        answers = [number for number, mark in enumerate(marks) if mark]
        wrong = [number for number in answers if turns[number].role != _ANSWERS]
        if wrong:
            raise FieldError(f"turn {wrong[0]} of '{name}' is marked, but only the assistant's turns can be learnt")
        if not answers:
            raise FieldError(f"no turn of '{name}' is marked to be learnt")
    elif turns[-1].role != _ANSWERS:
        raise FieldError(
            f"the turns in '{name}' end with {turns[-1].role!r}; a demonstration ends with the assistant's"
        )
    chosen = answers[-1:] if which == "last" else answers
    if chosen[0] == 0:
        raise FieldError(f"the turns in '{name}' begin with an answer; nothing precedes it")
    empty = [number for number in chosen if not turns[number].content.strip()]
    if empty:
        raise FieldError(f"turn {empty[0]} of '{name}' is an empty answer")
    return chosen[-1], tuple(chosen[:-1])
