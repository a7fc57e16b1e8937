"""Looking up fields of a row by name, and their text."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

_SHOWN = 20


class FieldError(ValueError):
    """A row lacks a field or holds something else than was asked of it. The message names the field."""


def read_field(row: Mapping[str, Any], name: str) -> Any:
    """The value of ``name``: a key of the row, or keys joined by dots for nested mappings.

    A key that holds dots itself is found too, and goes before nested ones.

    Raises:
        FieldError: there is no such field; the message lists those that exist.
    """
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise FieldError(_missing(row, name))
        value = value[part]
    return value


def field_text(row: Mapping[str, Any], name: str) -> str:
    """The field as text: strings as they are; numbers, true, false and flat lists as JSON.

    Raises:
        FieldError: the field is missing, null, or holds objects.
    """
    value = read_field(row, name)
    if isinstance(value, str):
        return value
    if value is None:
        raise FieldError(f"field '{name}' is null")
    flat = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(item, (str, bool, int, float)) for item in flat):
        raise FieldError(f"field '{name}' holds {_kind(value)}, which has no text; name a field inside it")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise FieldError(f"field '{name}' holds a number that is not finite") from error


def nest(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names -> nested mappings: ``{"a.b": 1}`` becomes ``{"a": {"b": 1}}``."""
    nested: dict[str, Any] = {}
    # Shorter names first, so that a field named inside a mapping that is named too finds it in place.
    for name in sorted(fields, key=lambda name: name.count(".")):
        *outer, last = name.split(".")
        place = nested
        for part in outer:
            inside = place.get(part)
            place[part] = dict(inside) if isinstance(inside, Mapping) else {}
            place = place[part]
        place[last] = fields[name]
    return nested


def _missing(row: Mapping[str, Any], name: str) -> str:
    names = list(_names(row))
    close = difflib.get_close_matches(name, names, n=1)
    guess = f"; did you mean '{close[0]}'?" if close else ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"there is no field '{name}'; the row has {', '.join(names[:_SHOWN]) or 'no fields'}{more}{guess}"


def _names(row: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in row.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{key}.")


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list of objects"
    return f"a value of type {type(value).__name__}"
