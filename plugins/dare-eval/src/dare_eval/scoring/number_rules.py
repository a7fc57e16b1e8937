"""Published rules for GSM8K: OpenCompass (``oc-gsm8k``), lm-evaluation-harness (``lm-eval-*``), d1 (``d1-gsm8k``)."""

from __future__ import annotations

import re

from dare_eval.answers import first_answer_block

_NUMBER = re.compile(r"-?\d+\.\d+|-?\d+")
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_BOX = re.compile(r"\\boxed\{([^}\n]*)\}")
_D1_NUMBER = re.compile(r"-?\d+\.?\d*")
#: what lm-evaluation-harness calls a response without a match
INVALID = "[invalid]"
#: longest difference that OpenCompass calls equal
NEAR = 1e-6


def oc_number(response: str) -> str | None:
    """The last integer or decimal before the first ``Question:``; None without one. Commas split numbers."""
    found = _NUMBER.findall(response.split("Question:")[0])
    return found[-1] if found else None


def oc_equal(number: str | None, reference: str) -> bool:
    """Equal as strings, or nearer than 1e-6."""
    if number is None:
        return False
    try:
        return number == reference or abs(float(number) - int(reference)) < NEAR
    except (ValueError, OverflowError):
        return False


def harness_strict(response: str) -> str | None:
    """The first number behind ``#### ``."""
    found = _STRICT.search(response)
    return found[1].strip() if found else None


def harness_flexible(response: str) -> str | None:
    """The last run of digits, dots, commas and dollar signs."""
    found = _FLEXIBLE.findall(response)
    return found[-1].strip() if found else None


def harness_equal(answer: str | None, reference: str) -> bool:
    """Equal without commas, dollars, what stands up to ``#### `` and one final dot."""
    return _harness_form(INVALID if answer is None else answer) == _harness_form(reference)


def _harness_form(text: str) -> str:
    return text.replace(",", "").replace("$", "").rpartition("#### ")[2].removesuffix(".").lower()


def d1_number(response: str) -> float | None:
    """The first number in a box (the box up to its first closing brace); else of the first answer block the whole, else
    its last number."""
    for content in _BOX.findall(response):
        content = content.strip()
        if not content.strip("."):
            continue
        number = _float(content)
        numbers = _D1_NUMBER.findall(content)
        if number is not None or numbers:
            return float(numbers[0]) if number is None else number
    block = first_answer_block(response)
    if not block:
        return None
    number = _float(block)
    numbers = _D1_NUMBER.findall(block)
    return float(numbers[-1]) if number is None and numbers else number


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
