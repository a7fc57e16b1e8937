"""Filling ``{name}`` places: the notation of data templates, over a task's own names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def places(template: str) -> list[str]:
    """Names of the places of a template, in order.

    Raises:
        ValueError: a brace stands alone.
    """
    found = []
    for match in _TOKEN.finditer(template):
        if match[1]:
            found.append(match[1])
        elif match[0] not in ("{{", "}}"):
            raise ValueError(f"a single '{match[0]}' in {template!r}; write '{match[0] * 2}' for a brace")
    return found


def filled(template: str, values: Mapping[str, Any]) -> str:
    """The template with its places filled; text as it is, other values as Python writes them.

    Raises:
        KeyError: a place without a value.
    """

    def place(match: re.Match[str]) -> str:
        return str(values[match[1]]) if match[1] else match[0][0]

    return _TOKEN.sub(place, template)
