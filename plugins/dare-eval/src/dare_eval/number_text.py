"""Reading a number from what a model wrote: units, currency, thousands and LaTeX around it."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from itertools import pairwise

#: an answer longer than this is prose without an answer; the end of it is what is read
LONGEST = 2000
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_VALUE = re.compile(rf"(?P<sign>(?<![0-9)}}])-\s?)?(?P<number>{_NUMBER})(?:\s?/\s?(?P<below>[0-9]+))?")
_OPERATOR = re.compile(r"[+*/×÷·⋅]|\\times|\\cdot|\\div|-")
_SPOILED = re.compile(r"\^|\\sqrt|√|!")
_UNIT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?[0-9]\}?)?")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?[0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_DROPPED = ("\\!", "\\,", "\\$", "$", "**", "\\left", "\\right", "\\(", "\\)", "\\[", "\\]", "^{\\circ}", "^\\circ")


def number_of(text: str) -> Fraction | None:
    """The number that an answer states; None if it states none or an expression still to be worked out.

    Read is what follows the last ``=``. Several numbers in a sentence: the last one.
    """
    tail = plain(text).rpartition("=")[2]
    if _SPOILED.search(tail.rstrip(" !")):
        return None
    found = list(_VALUE.finditer(tail))
    if not found:
        return None
    between = [tail[left.end() : right.start()].strip() for left, right in pairwise(found)]
    if any(_OPERATOR.fullmatch(gap) for gap in between):
        return None
    return _value(found[-1])


def bare_number(text: str) -> Fraction | None:
    """The number that a text is, but for blanks and marks that carry no value; None if it says anything else."""
    found = _VALUE.fullmatch(plain(text).replace(" ", ""))
    return None if found is None else _value(found)


def ends_with_number(text: str) -> Fraction | None:
    """The last number of a text; None without one."""
    found = list(_VALUE.finditer(plain(text)))
    return _value(found[-1]) if found else None


def plain(text: str) -> str:
    """The end of ``text`` with decimal digits of any script as 0-9, and without units and marks that carry no value."""
    text = "".join(_plain_character(character) for character in text[-LONGEST:])
    text = text.replace("{,}", ",")
    for mark in _DROPPED:
        text = text.replace(mark, "")
    return _FRACTION.sub(r"\1/\2", _UNIT.sub(" ", text))


def _plain_character(character: str) -> str:
    if character.isascii():
        return character
    if character == "−":
        return "-"
    # superscripts are digits for Python but not decimal: 7² is not 72
    return str(unicodedata.decimal(character)) if character.isdecimal() else character


def _value(match: re.Match[str]) -> Fraction | None:
    below = int(match["below"] or 1)
    if below == 0:
        return None
    value = Fraction(match["number"].replace(",", "")) / below
    return -value if match["sign"] else value
