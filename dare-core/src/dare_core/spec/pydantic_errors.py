"""Pydantic's errors as problems: the key's file and line, what was given, what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from dare_core.errors import Problem
from dare_core.spec.nodes import Node, described
from dare_core.spec.problems import did_you_mean, joined

Path = tuple[str | int, ...]
#: pydantic's error type -> what is allowed; {names} are filled from the error's context
_ALLOWED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "tuple_type": "a list",
    "list_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "string_too_short": "text of at least {min_length} characters",
    "string_pattern_mismatch": "text matching {pattern}",
    "none_required": "null",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}


@dataclass(frozen=True)
class Section:
    """What is being validated.

    Attributes:
        node: the merged options.
        model: their config class.
        path: dotted path of the section in the spec.
        label: what keys are options of, quoted in messages.
        elsewhere: key -> sections that do have it, for misplaced keys.
    """

    node: Node
    model: type[BaseModel]
    path: str
    label: str
    elsewhere: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class _Located:
    error: ErrorDetails
    path: Path
    #: where a union stands in whose branches the error occurred
    union: Path | None


def problems_of(errors: Sequence[ErrorDetails], section: Section) -> list[Problem]:
    """One problem per wrong value. Errors of several branches of a union become one sentence."""
    located = [_locate(error, section.node) for error in errors]
    located = [item for item in located if not _only_for_want_of_valid_items(item, section.node)]
    deeper = {item.union for item in located if item.union is not None and len(item.path) > len(item.union)}
    kept = [item for item in located if item.union not in deeper or item.path != item.union]
    by_path: dict[tuple[Path, bool], list[ErrorDetails]] = {}
    for item in kept:
        by_path.setdefault((item.path, item.error["type"] in _ALLOWED), []).append(item.error)
    problems: list[Problem] = []
    for (path, simple), group in by_path.items():
        problems += (
            [_wrong_value(path, group, section)] if simple else [_other(path, error, section) for error in group]
        )
    return problems


def _locate(error: ErrorDetails, root: Node) -> _Located:
    """The error's path in the spec: pydantic's location without the names of union branches."""
    path: list[str | int] = []
    union: Path | None = None
    node = root
    for index, part in enumerate(error["loc"]):
        child = node.get([part])
        if child is not None:
            node = child
        elif error["type"] != "missing" or index + 1 < len(error["loc"]):
            union = union if union is not None else tuple(path)
            continue
        path.append(part)
    return _Located(error, tuple(path), union)


def _only_for_want_of_valid_items(item: _Located, root: Node) -> bool:
    """Pydantic counts valid items only; the invalid ones are reported by themselves."""
    least = (item.error.get("ctx") or {}).get("min_length")
    node = root.get(item.path)
    return item.error["type"] == "too_short" and node is not None and len(node.items) >= (least or 0)


def _wrong_value(path: Path, errors: Sequence[ErrorDetails], section: Section) -> Problem:
    allowed = list(dict.fromkeys(_ALLOWED[e["type"]].format_map(e.get("ctx") or {}) for e in errors))
    node = section.node.get(path) or section.node
    where, hint = _place(node, section)
    return Problem(f"must be {joined(allowed)}, not {described(node)}", _dotted(section, path), where, hint)


def _other(path: Path, error: ErrorDetails, section: Section) -> Problem:
    node = section.node.get(path)
    if error["type"] == "extra_forbidden":
        return _unknown_key(path, section)
    if error["type"] == "missing":
        above = section.node.get(path[:-1]) or section.node
        fields = _models_at(section.model, path[:-1])
        about = next((m.model_fields[str(path[-1])].description for m in fields if path[-1] in m.model_fields), None)
        return Problem(f"missing key for '{section.label}'", _dotted(section, path), above.where, about)
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if error["type"] not in ("value_error", "assertion_error"):
        message = message[:1].lower() + message[1:]
    whole = path == ()
    if node is not None and whole:
        mentioned = _mentioned(message, node)
        if mentioned is not None:
            path, node = (mentioned,), node.entries[mentioned]
            message = message.removeprefix(f"{mentioned}: ")
    where, hint = _place(node or section.node, section, whole=whole)
    return Problem(message, _dotted(section, path), where, hint)


def _unknown_key(path: Path, section: Section) -> Problem:
    key = str(path[-1])
    node = section.node.get(path) or section.node
    fields = {name for model in _models_at(section.model, path[:-1]) for name in model.model_fields}
    return unknown_key(key, node, f"'{section.label}'", _dotted(section, path), fields, section.elsewhere)


def unknown_key(
    key: str, node: Node, label: str, path: str, known: set[str], elsewhere: Mapping[str, Sequence[str]]
) -> Problem:
    """A key that the options of ``label`` do not have: the section that has it, or the nearest key."""
    homes = [home for home in elsewhere.get(key, ()) if home != path.rpartition(".")[0]]
    hint = f"it belongs to {joined(homes)}" if homes else did_you_mean(key, sorted(known), what="its keys")
    return Problem(f"unknown key for {label}", path, node.where, hint)


def _place(node: Node, section: Section, *, whole: bool = False) -> tuple[str | None, str | None]:
    """File and line of a value, and who gave it where that was not written by hand.

    With ``whole`` the error is one of several options together: all that were not written by hand may take part.
    """
    given: dict[str, list[str]] = {}
    for key, child in (section.node.entries if whole else {"": node}).items():
        if not child.origin.by_hand:
            giver = f"{child.origin.source} {child.origin.where}".strip()
            given.setdefault(giver, []).append(f"{key}: {child.plain()}" if key else "")
    hint = "; ".join(f"{giver} gives {', '.join(what) if whole else 'it'}" for giver, what in given.items())
    return node.where or section.node.where, hint or None


def _mentioned(message: str, node: Node) -> str | None:
    """The written key that a message about a whole section speaks of first."""
    spots = {key: _names(message, key) for key in node.entries}
    written = {
        key: spot.start() for key, spot in spots.items() if spot is not None and node.entries[key].origin.by_hand
    }
    return min(written, key=lambda key: written[key]) if written else None


def _names(message: str, key: str) -> re.Match[str] | None:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", message)


def _dotted(section: Section, path: Path) -> str:
    return ".".join([section.path, *(str(part) for part in path)])


def _models_at(annotation: Any, path: Path) -> list[type[BaseModel]]:
    """The config classes that may stand at ``path`` below ``annotation``."""
    options = _members(annotation)
    for part in path:
        below: list[Any] = []
        for option in options:
            if isinstance(option, type) and issubclass(option, BaseModel):
                if part in option.model_fields:
                    below += _members(option.model_fields[str(part)].annotation)
            elif isinstance(part, int):
                below += [member for arg in get_args(option) if arg is not ... for member in _members(arg)]
        options = below
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]


def _members(annotation: Any) -> list[Any]:
    """The branches of a union; without ``Annotated``."""
    if hasattr(annotation, "__metadata__"):
        return _members(annotation.__origin__)
    if get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        return [member for arg in get_args(annotation) for member in _members(arg)]
    return [annotation]
