"""The rule ``dare`` of the math reward: strings, else symbols, within the unified framework's limits.

A box is needed. Integers must match as integers, fractions as written in lowest terms, tuples and intervals element by
element with the same brackets; units, currency, percent signs and letter case do not matter. Expressions are compared
symbolically if they are simple: at most two unknowns, no braced or chained powers. Runs in worker processes only.
"""

from __future__ import annotations

import re
from typing import Any

from dare_eval.answers import last_box, one_line
from dare_eval.latex_equality import normalised
from dare_eval.polynomials import difference_is_zero

_TEXT = re.compile(r"\s*\\text\{(.+?)\}\s*")
_UNITS = re.compile(
    r"(degree|centimeter|cm|meter|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard|liter)"
    r"(es)?s? *(\^[0-9]+)?"
)
_DEGREES = re.compile(r"\^ *\\circ|\^ *\{\\circ\}")
_WORDS = (
    ("\\%", ""), ("\\$", ""), ("$", ""), ("%", ""), (" or ", ","), (" and ", ","),
    ("million", "*10^6"), ("billion", "*10^9"), ("trillion", "*10^12"),
)  # fmt: skip
_LATEX = (
    ("\\tfrac", "\\frac"), ("\\dfrac", "\\frac"), ("\\cdot", "*"), ("\\times", "*"), ("\\pi", "pi"), ("\\infty", "inf"),
    ("\\cup", "U"), ("\\left", ""), ("\\right", ""), ("\\{", "{"), ("\\}", "}"), ("\\ ", ""), ("\\,", ""), ("\\!", ""),
)  # fmt: skip
_SIMPLE_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_ROOT = re.compile(r"\\sqrt\s*(?:\{([^{}]*)\}|(\w))")
_NAMED_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\{([^{}]*)\}")
_MIXED = re.compile(r"([0-9]) +([0-9])")
_FRACTION = re.compile(r"-?[0-9]+.?/0*[1-9][0-9]*.?")
_GROUPED = re.compile(r"(\d),(\d{3})(?=$|\D)")
_BRACKETS = ("()", "(]", "[)", "[]")
_TOO_HARD = re.compile(r"\^\{|\^\(|\^[0-9]+\^|\^[0-9][0-9]+")


def judge_dare(response: str, reference: str) -> dict[str, Any]:
    """Verdict as status and detail (the extracted text)."""
    answer = last_box(response)
    if answer is None:
        return {"status": "unparsed", "detail": "no closed box"}
    return {"status": "correct" if equal(answer, reference) else "wrong", "detail": one_line(answer)}


def equal(answer: str, reference: str) -> bool:
    """Whether the two are the same answer under this rule."""
    if _strict(answer) == _strict(reference):
        return True
    given, gold = _loose(answer), _loose(reference)
    if given == gold:
        return True
    if not given:
        return False
    given_items, gold_items = _items(given), _items(gold)
    if len(gold_items) > 1 and (gold[0], gold[-1]) != (given[0], given[-1]):
        return False
    return len(given_items) == len(gold_items) and all(map(_same_item, gold_items, given_items))


def _strict(text: str) -> str:
    text = text.strip()
    named = _TEXT.fullmatch(text)
    text = named[1].strip() if named else text
    try:
        return normalised(text)
    except ValueError:
        return text


def _loose(text: str) -> str:
    named = _TEXT.fullmatch(text)
    text = named[1] if named else text
    for written, meant in _WORDS:
        text = text.replace(written, meant)
    text = _DEGREES.sub("", _UNITS.sub("", text)).strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = _whole_float(re.sub(r",\\! *", "", text))
    if "\\" in text:
        text = _without_latex(text)
    text = _MIXED.sub(r"\1+\2", re.sub("- *", "-", text).strip())
    text = re.sub(r"[ {}]", "", text).lower()
    integer = _integer(text)
    return text if integer is None else str(integer)


def _without_latex(text: str) -> str:
    for written, meant in _LATEX:
        text = text.replace(written, meant)
    text = _NAMED_TEXT.sub(r"\1", text)
    for _ in range(text.count("\\")):
        shorter = _ROOT.sub(_plain_root, _SIMPLE_FRACTION.sub(_plain_fraction, text))
        if shorter == text:
            break
        text = shorter
    return text.strip()


def _plain_fraction(match: re.Match[str]) -> str:
    above, below = (first if first is not None else second for first, second in (match.group(1, 2), match.group(3, 4)))
    return f" {_grouped(above)}/{_grouped(below)}"


def _plain_root(match: re.Match[str]) -> str:
    return f"sqrt({match[1] if match[1] is not None else match[2]})"


def _grouped(text: str) -> str:
    return text if re.fullmatch(r"-?\w+|\w+", text.strip()) else f"({text})"


def _whole_float(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        return text
    return str(round(value)) if abs(value) < 1e15 and abs(value - round(value)) <= 1e-7 else text


def _items(text: str) -> list[str]:
    text = _ungrouped(text)
    if len(text) > 2 and text[0] + text[-1] in _BRACKETS and not re.search(r"[()\[\]]", text[1:-1]):
        return [item.strip() for item in text[1:-1].split(",")]
    return [text]


def _same_item(gold: str, given: str) -> bool:
    if _FRACTION.fullmatch(gold) and _FRACTION.fullmatch(given):
        return gold == given
    if (_integer(gold) is None) != (_integer(given) is None):
        return False
    if _too_hard(gold) or _too_hard(given):
        return False
    return difference_is_zero(gold, given)


def _too_hard(text: str) -> bool:
    letters = set(re.sub(r"sqrt|frac|pi", "", text))
    return sum(character.isalpha() for character in letters) > 2 or _TOO_HARD.search(text) is not None


def _ungrouped(text: str) -> str:
    while (shorter := _GROUPED.sub(r"\1\2", text)) != text:
        text = shorter
    return text


def _integer(text: str) -> int | None:
    try:
        value = float(_ungrouped(text).replace(",", "") if _GROUPED.search(text) else text)
    except ValueError:
        return None
    return round(value) if abs(value) < 1e15 and abs(value - round(value)) <= 1e-7 else None
