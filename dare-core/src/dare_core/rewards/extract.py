"""Rules that find the answer in a response. All run in time linear in its length."""

from __future__ import annotations

import re

from dare_core.rewards.numbers import NUMBER_IN_TEXT

_TAGS = "<{}>", "</{}>"
_BRACES = re.compile(r"\\boxed\s{0,8}\{|\\.|[{}]", re.DOTALL)


def last_number(text: str) -> str | None:
    """The last number of the text as it is written there, sign and thousands commas included.

    A minus after a digit, letter or closing bracket is an operator: ``9-4`` ends with 4.
    """
    found = None
    for match in NUMBER_IN_TEXT.finditer(text):
        found = match[0]
    return found


def after_marker(text: str, marker: str, last: bool) -> str | None:
    """What follows the marker on its line."""
    place = text.rfind(marker) if last else text.find(marker)
    if place < 0:
        return None
    return text[place + len(marker) :].split("\n", 1)[0].strip()


def boxed(text: str, last: bool) -> str | None:
    r"""The content of a ``\boxed{...}`` with balanced braces: the outermost of nested ones; ones that are never
    closed do not count."""
    opened: list[int | None] = []
    closed: list[tuple[int, int]] = []
    for match in _BRACES.finditer(text):
        if match[0].endswith("{") and match[0] != r"\{":
            opened.append(match.end() if len(match[0]) > 1 else None)
        elif match[0] == "}" and opened:
            begin = opened.pop()
            if begin is not None:
                while closed and closed[-1][0] > begin:
                    closed.pop()
                closed.append((begin, match.start()))
    if not closed:
        return None
    begin, end = closed[-1 if last else 0]
    return text[begin:end].strip()


def tagged(text: str, tag: str, last: bool) -> str | None:
    """The content of ``<tag>...</tag>``; one that is never closed does not count."""
    opening, closing = (form.format(tag) for form in _TAGS)
    begin = text.rfind(opening, 0, max(text.rfind(closing), 0)) if last else text.find(opening)
    end = text.find(closing, max(begin, 0))
    if begin < 0 or end < 0:
        return None
    return text[begin + len(opening) : end].strip()
