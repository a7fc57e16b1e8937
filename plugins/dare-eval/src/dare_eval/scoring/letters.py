"""The letter of a multiple-choice answer: MMLU-Pro's published pattern, and ours."""

from __future__ import annotations

import re

from dare_eval.answers import marked_answer

_PATTERN = re.compile(r"answer\s*:\s*([A-P])", re.IGNORECASE)
_ANNOUNCED = re.compile(r"\b(?:answer|choice|option)\b(?:\s+is)?[\s:*]*\(?([A-Z])\b(?!['’])", re.IGNORECASE)
_MARKED = re.compile(r"[\s(*]*([A-Za-z])(?![A-Za-z0-9])")
_ALONE = re.compile(r"[\s(*]*([A-Za-z])(?:[.):,*]+(?:\s|$)|[^\S\n]*(?:\n|$))")


def announced_letter(response: str) -> str:
    """``oc-answer-letter-pattern``: the first letter A-P behind ``answer:``, in its own case; empty without one."""
    found = _PATTERN.search(response)
    return found[1] if found else ""


def chosen_letter(response: str, choices: int) -> str | None:
    """Ours: the letter that the response marks (box, answer tag), else announces last ("the answer is B", "Option: B"),
    else begins with ("B", "(B)", "B. because"). None if there is none or it names no choice."""
    marked = marked_answer(response)
    if marked is not None:
        found = _MARKED.match(marked.replace("\\text{", "").replace("}", ""))
        letter = found[1] if found else None
    else:
        announced = _ANNOUNCED.findall(response)
        first = _ALONE.match(response)
        letter = announced[-1] if announced else first[1] if first else None
    if letter is None:
        return None
    letter = letter.upper()
    return letter if 0 <= ord(letter) - ord("A") < choices else None
