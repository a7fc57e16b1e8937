"""Rules by name: how a response becomes an answer, and when the answer is right.

Each published rule keeps its authors' defects: comparing with their numbers is what it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from dare_core.types import Prompt
from dare_eval.answers import first_answer_block, last_answer_block
from dare_eval.countdown import graded_score, published_box, published_expression, reaches
from dare_eval.judging import meta_numbers, meta_value
from dare_eval.latex_equality import equal_strings
from dare_eval.scoring import latex_forms, letters, number_rules, puzzle_rules
from dare_eval.sudoku import cell_score

Parts = Mapping[str, float]


@dataclass(frozen=True)
class TextRule:
    """A rule that needs nothing but text.

    Attributes:
        read: response and prompt -> the answer, None if there is none.
        grade: answer and prompt -> score, 1 = right, and named parts.
        needs: what a prompt must hold: ``reference``, or fields of its meta.
    """

    read: Callable[[str, Prompt], Any]
    grade: Callable[[Any, Prompt], tuple[float, Parts]]
    needs: tuple[str, ...] = field(default=("reference",))


def _by(equal: Callable[[Any, str], bool]) -> Callable[[Any, Prompt], tuple[float, Parts]]:
    return lambda answer, prompt: (float(equal(answer, prompt.reference or "")), {})


def _text(read: Callable[[str], Any]) -> Callable[[str, Prompt], Any]:
    return lambda response, prompt: read(response)


def _same_float(answer: float, reference: str) -> bool:
    return answer == float(reference.rpartition("####")[2].replace(",", ""))


def d1_math_text(response: str) -> str:
    """What d1 compares for MATH-500: the last box, or the whole response without a box; where the box is never closed
    or empty, the first answer block, else nothing."""
    return published_box(response) or first_answer_block(response) or ""


def _countdown_task(prompt: Prompt) -> tuple[list[int], Fraction]:
    return meta_numbers(prompt, "numbers") or [], Fraction(meta_value(prompt, "target"))


def _d1_countdown(answer: str, prompt: Prompt) -> tuple[float, Parts]:
    right, _ = reaches(answer, *_countdown_task(prompt))
    return float(right), {}


def _dare_countdown(answer: str, prompt: Prompt) -> tuple[float, Parts]:
    verdict = graded_score(f"<answer>{answer}</answer>", *_countdown_task(prompt))
    return verdict.score or 0.0, {}


def _d1_sudoku(grid: str, prompt: Prompt) -> tuple[float, Parts]:
    right, empty = puzzle_rules.right_cells(grid, str(meta_value(prompt, "puzzle")), prompt.reference or "")
    return right / empty if empty else 0.0, {"cells_right": float(right), "cells_empty": float(empty)}


def _dare_sudoku_digits(response: str) -> str | None:
    digits = "".join(character for character in last_answer_block(response) or "" if character.isdigit())
    return digits or None


def _dare_sudoku(digits: str, prompt: Prompt) -> tuple[float, Parts]:
    verdict = cell_score(f"<answer>{digits}</answer>", str(meta_value(prompt, "puzzle")), prompt.reference or "")
    return verdict.score or 0.0, {}


def _letter(response: str, prompt: Prompt) -> str | None:
    choices = meta_value(prompt, "choices")
    return letters.chosen_letter(response, len(choices) if isinstance(choices, (list, tuple)) else 26)


def _same_text(answer: str, reference: str) -> bool:
    return " ".join(answer.split()).casefold() == " ".join(reference.split()).casefold()


_COUNTDOWN = ("numbers", "target")
_SUDOKU = ("reference", "puzzle")

#: name -> rule
TEXT_RULES: Mapping[str, TextRule] = MappingProxyType(
    {
        "oc-gsm8k": TextRule(_text(number_rules.oc_number), _by(number_rules.oc_equal)),
        "lm-eval-gsm8k-strict": TextRule(_text(number_rules.harness_strict), _by(number_rules.harness_equal)),
        "lm-eval-gsm8k-flexible": TextRule(_text(number_rules.harness_flexible), _by(number_rules.harness_equal)),
        "d1-gsm8k": TextRule(_text(number_rules.d1_number), _by(_same_float)),
        "oc-math-v2": TextRule(_text(latex_forms.extracted), _by(latex_forms.equal)),
        "d1-math500": TextRule(_text(d1_math_text), _by(equal_strings)),
        "oc-answer-letter-pattern": TextRule(
            _text(lambda response: letters.announced_letter(response) or None),
            _by(lambda answer, reference: answer == reference),
        ),
        "choice-letter": TextRule(_letter, _by(lambda answer, reference: answer == reference.strip().upper())),
        "d1-countdown": TextRule(_text(published_expression), _d1_countdown, _COUNTDOWN),
        "dare-countdown": TextRule(_text(last_answer_block), _dare_countdown, _COUNTDOWN),
        "d1-sudoku": TextRule(_text(lambda text: puzzle_rules.d1_grid(text) or None), _d1_sudoku, _SUDOKU),
        "dare-sudoku": TextRule(_text(_dare_sudoku_digits), _dare_sudoku, _SUDOKU),
        "text": TextRule(_text(lambda response: response.strip() or None), _by(_same_text)),
    }
)
