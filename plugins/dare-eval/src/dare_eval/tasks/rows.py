"""Rows of a task -> questions with their references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dare_core.api import Problem, UserError
from dare_core.types import Message, Prompt
from dare_eval.tasks.description import TaskDescription, Turn
from dare_eval.tasks.files import content_hash, locate, read_rows
from dare_eval.tasks.templates import filled

#: problems told before the rest is counted
SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Question:
    """One item of a task.

    Attributes:
        prompt: what the model sees, its reference, and the fields its rule reads; ``index`` is the row's position.
        continuations: what is scored, for likelihood tasks.
        choices: the choices' texts.
        right: index of the right choice, for likelihood tasks.
        group: value of the task's group field.
    """

    prompt: Prompt
    continuations: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    right: int | None = None
    group: str | None = None


@dataclass(frozen=True, kw_only=True)
class Questions:
    """All questions of a task that are asked.

    Attributes:
        questions: in file order.
        sources: name of each file read -> hash of its content.
    """

    questions: tuple[Question, ...]
    sources: Mapping[str, str]


def read_questions(
    task: TaskDescription,
    *,
    data_folder: str | None,
    data_file: str | None = None,
    limit: int | None = None,
    shots: int | None = None,
) -> Questions:
    """The task's questions.

    Args:
        task: the description.
        data_folder: where its files lie.
        data_file: use this file instead of the task's.
        limit: only the first rows.
        shots: examples shown, instead of the task's count; 0 = none.

    Raises:
        UserError: files are missing, or rows lack what the task reads; names them.
    """
    path = Path(data_file) if data_file else locate(task.data.file, data_folder, task.data.origin, task.task)
    if not path.is_file():
        raise UserError(Problem("no such file", path="eval.data_file", where=str(path)))
    sources = {path.name.removesuffix(".gz"): content_hash(path)}
    examples: list[Mapping[str, Any]] = []
    count = (task.shots.count if task.shots else 0) if shots is None else shots
    if count:
        if task.shots is None:
            raise UserError(Problem(f"task '{task.task}' has no examples to show", path="eval.shots"))
        shown = locate(task.shots.file, data_folder, task.shots.origin, task.task)
        sources[shown.name.removesuffix(".gz")] = content_hash(shown)
        examples = _examples(task, shown, count)
    return Questions(questions=_all(task, path, limit, examples), sources=sources)


def _all(
    task: TaskDescription, path: Path, limit: int | None, examples: Sequence[Mapping[str, Any]]
) -> tuple[Question, ...]:
    found: list[Question] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for index, (where, row) in enumerate(read_rows(path)):
        if limit is not None and index == limit:
            break
        key = str(_first(row, task.data.id) or f"{task.task}-{index}")
        if key in seen:
            problems.append(Problem(f"id '{key}' is used twice; ids must differ", where=where))
        seen.add(key)
        try:
            found.append(_question(task, key, index, _values(task, row), examples))
        except (KeyError, ValueError) as error:
            missing = f"has no '{error.args[0]}'" if isinstance(error, KeyError) else str(error)
            problems.append(Problem(f"row '{key}' {missing}", where=where))
    if not found and not problems:
        problems.append(Problem("holds no rows", where=str(path)))
    if problems:
        more = [Problem(f"{len(problems) - SHOWN} more rows have such problems")] if len(problems) > SHOWN else []
        raise UserError([*problems[:SHOWN], *more])
    return tuple(found)


def _examples(task: TaskDescription, path: Path, count: int) -> list[Mapping[str, Any]]:
    rows = [_values(task, row) for _, (_, row) in zip(range(count), read_rows(path), strict=False)]
    if len(rows) < count:
        raise UserError(Problem(f"{count} examples are asked for, and it holds {len(rows)}", where=str(path)))
    return rows


def _values(task: TaskDescription, row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the row has, by the task's names; `choices` also as lettered lines in `options`."""
    values = {name: _first(row, paths) for name, paths in task.data.fields.items()}
    values = {name: value for name, value in values.items() if value is not None}
    choices = values.get("choices")
    if isinstance(choices, (list, tuple)):
        values["options"] = "\n".join(f"{letter(i)}. {choice}" for i, choice in enumerate(choices))
    return values


def _first(row: Mapping[str, Any], paths: Sequence[str]) -> Any:
    for path in paths:
        value: Any = row
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _question(
    task: TaskDescription, key: str, index: int, values: Mapping[str, Any], examples: Sequence[Mapping[str, Any]]
) -> Question:
    text = _as_text(values)
    reference = None if task.reference is None else filled(task.reference, text)
    if reference is not None and not reference.strip():
        raise ValueError("has an empty answer")
    meta = {name: values[name] for name in task.meta if name in values}
    prompt = _prompt(task, Prompt(key, index, text="", reference=reference, meta=meta), text, examples)
    group = None if task.group is None or task.group not in values else str(values[task.group])
    if "choices" not in task.data.fields:
        return Question(prompt=prompt, group=group)
    choices = _choices(values)
    right = _right(reference, len(choices))
    continuations = ()
    if task.choices is not None:
        pattern = task.choices.continuation
        continuations = tuple(filled(pattern, {"choice": c, "letter": letter(i)}) for i, c in enumerate(choices))
    prompt = replace(prompt, reference=letter(right))
    return Question(prompt=prompt, continuations=continuations, choices=choices, right=right, group=group)


def _prompt(
    task: TaskDescription, blank: Prompt, values: Mapping[str, str], examples: Sequence[Mapping[str, Any]]
) -> Prompt:
    if isinstance(task.prompt, str):
        pieces = [filled(task.prompt, values)]
        if task.shots is not None:
            shown = [_as_text(example) for example in examples]
            pieces = [filled(task.prompt, one) + filled(task.shots.answer, one) for one in shown] + pieces
        return replace(blank, text=(task.shots.separator if task.shots else "").join(pieces))
    turns = [turn for turn in task.prompt if turn.role == "system"]
    asking = [turn for turn in task.prompt if turn.role != "system"]
    messages = _turns(turns, values)
    for example in examples if task.shots is not None else ():
        one = _as_text(example)
        messages += [*_turns(asking, one), Message("assistant", filled(task.shots.answer, one))]  # type: ignore[union-attr]
    return replace(blank, text=None, messages=(*messages, *_turns(asking, values)))


def _turns(turns: Sequence[Turn], values: Mapping[str, str]) -> list[Message]:
    return [Message(turn.role, filled(turn.content, values)) for turn in turns]


def _as_text(values: Mapping[str, Any]) -> dict[str, str]:
    """Lists of lines (tests, for example) stand on lines of their own."""
    return {
        name: "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        for name, value in values.items()
    }


def _choices(values: Mapping[str, Any]) -> tuple[str, ...]:
    choices = values["choices"]
    if not isinstance(choices, (list, tuple)) or len(choices) < 2:
        raise ValueError("needs at least two choices, as a list")
    return tuple(map(str, choices))


def _right(answer: str | None, count: int) -> int:
    """The right choice, from a letter or a number from 0."""
    text = (answer or "").strip()
    index = int(text) if text.isdecimal() else ord(text.upper()) - ord("A") if len(text) == 1 else -1
    if not 0 <= index < count:
        raise ValueError(f"has the answer {answer!r}, which names none of its {count} choices")
    return index


def letter(index: int) -> str:
    """A, B, C, ... of a choice."""
    return chr(ord("A") + index)
