"""Countdown: reach a target with every given number used once.

Reads ``meta.numbers`` (list of integers) and ``meta.target`` (else the reference). Rules:

* ``exact``: the expression is what the response marks (last box, else last answer tag). LaTeX and typographic operators
  are read as + - * /; a final ``= value`` is allowed if true. Signs, powers, floor division and decimals are refused.
* ``d1`` (d1, arXiv 2504.12216; also the unified framework's): see :func:`graded_score`.
* ``mdpo`` (MDPO, arXiv 2508.13148; d1's evaluation follows the same rule): see :func:`published_expression`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from dare_core.types import Prompt, Verdict, VerdictStatus
from dare_eval.answers import closing_brace, first_answer_block, last_answer_block, marked_answer, one_line
from dare_eval.arithmetic import ExpressionError, exact_value, python_value, whole_numbers
from dare_eval.config import CountdownSection
from dare_eval.judging import ItemReward, meta_numbers, meta_value

#: how near the published rules want the value
NEAR = 1e-5
#: characters of an answer that is read by ``exact``, LaTeX included
LONGEST_ANSWER = 2000
_OPERATORS = str.maketrans({"×": "*", "⋅": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_LATEX = (("\\times", "*"), ("\\cdot", "*"), ("\\div", "/"), ("\\left", ""), ("\\right", ""), ("\\,", ""), ("$", ""))
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_EQUATION = re.compile(r"(?<![0-9+\-*/() ])[0-9+\-*/() ]+(?==[0-9. ])")


class CountdownReward(ItemReward):
    """``reward: {kind: countdown}``."""

    config: CountdownSection

    def lacks(self, prompt: Prompt) -> str | None:
        """Numbers or target, if missing."""
        if meta_numbers(prompt, "numbers") is None:
            return "countdown reads the given integers from meta field 'numbers'; name it in data.meta"
        if _target(prompt) is None:
            return "countdown reads the target number from meta field 'target' or the reference"
        return None

    def judge_one(self, prompt: Prompt, response: str) -> Verdict:
        """See the module's head."""
        missing = self.lacks(prompt)
        if missing:
            raise ValueError(missing)
        numbers, target = meta_numbers(prompt, "numbers") or [], _target(prompt) or Fraction(0)
        if not response.strip():
            return Verdict(0.0, VerdictStatus.EMPTY)
        if self.config.score == "d1":
            return graded_score(response, numbers, target)
        if self.config.score == "mdpo":
            return _mdpo(response, numbers, target)
        return _exact(response, numbers, target)


def graded_score(response: str, numbers: Sequence[int], target: Fraction) -> Verdict:
    """0 without a closed answer tag; 0.1 if the last one is wrong in any way; 1 if it uses exactly the given numbers
    and lies within 1e-5 of the target."""
    answer = last_answer_block(response)
    if answer is None:
        return Verdict(0.0, VerdictStatus.UNPARSED, "no closed answer tag")
    right, detail = reaches(answer, numbers, target)
    return Verdict(1.0 if right else 0.1, VerdictStatus.CORRECT if right else VerdictStatus.WRONG, detail)


def reaches(expression: str, numbers: Sequence[int], target: Fraction) -> tuple[bool, str]:
    """Whether Python's value of the expression is the target, every given number used once; and one line about it."""
    try:
        if sorted(whole_numbers(expression)) != sorted(numbers):
            return False, f"{one_line(expression)}: not the given numbers"
        value = python_value(expression.lstrip(" \t"))
        return near(value, target), f"{one_line(expression)} = {_shown(value)}"
    except (ExpressionError, OverflowError) as error:
        return False, f"{one_line(expression)}: {error}"


def near(value: Fraction | float, target: Fraction) -> bool:
    """Whether they differ by less than the published rules' 1e-5."""
    difference: Fraction | float = value - target
    return -NEAR < difference < NEAR


def published_expression(response: str) -> str:
    """The expression that the published evaluation reads from a response (d1, MDPO).

    The content of the last box (the last ``\\fbox`` with its command where there is no box); after a ``\\boxed `` with
    a space, everything up to the next ``$``. Without a box the whole response; if the last box is never closed, the
    first answer block, else the whole response. Then ``\\div``, ``\\times`` and ``\\cdot`` become operators, and of the
    first run of expression characters that is followed by ``=`` and a value only the run is kept.
    """
    text = published_box(response)
    if text is None:
        block = first_answer_block(response)
        text = response if block is None else block
    text = text.replace("\\div", "/").replace("\\times", "*").replace("\\cdot", "*")
    found = _EQUATION.search(text)
    return found.group().strip() if found else text


def published_box(response: str) -> str | None:
    """Text of step one of :func:`published_expression`; None if the last box is never closed."""
    if "\\boxed " in response:
        return response.split("\\boxed ")[-1].split("$")[0]
    start, skipped = response.rfind("\\boxed"), len("\\boxed{")
    if start < 0:
        start, skipped = response.rfind("\\fbox"), 0
        if start < 0:
            return response
    opening = response.find("{", start)
    end = closing_brace(response, opening) if opening >= 0 else None
    if end is None:
        return None
    return response[start + skipped : end] if skipped else response[start : end + 1]


def _mdpo(response: str, numbers: Sequence[int], target: Fraction) -> Verdict:
    right, detail = reaches(published_expression(response), numbers, target)
    return Verdict(float(right), VerdictStatus.CORRECT if right else VerdictStatus.WRONG, detail)


def _exact(response: str, numbers: Sequence[int], target: Fraction) -> Verdict:
    answer = marked_answer(response)
    if answer is None:
        return Verdict(0.0, VerdictStatus.UNPARSED, "neither a box nor a closed answer tag")
    if len(answer) > LONGEST_ANSWER:
        return Verdict(0.0, VerdictStatus.UNPARSED, f"an answer of more than {LONGEST_ANSWER} characters")
    left, equals, right = _plain(answer).partition("=")
    expression = left.strip()
    try:
        used, value = whole_numbers(expression), exact_value(expression)
        claimed = exact_value(right.strip()) if equals else value
    except ExpressionError as error:
        return Verdict(0.0, VerdictStatus.UNPARSED, f"{one_line(answer)}: {error}")
    if sorted(used) != sorted(numbers):
        return Verdict(0.0, VerdictStatus.WRONG, f"{one_line(expression)}: not the given numbers")
    correct = value == target and claimed == value
    status = VerdictStatus.CORRECT if correct else VerdictStatus.WRONG
    return Verdict(float(correct), status, f"{one_line(expression)} = {_shown(value)}")


def _plain(answer: str) -> str:
    """LaTeX and typographic operators as + - * /."""
    text = answer.translate(_OPERATORS)
    for _ in range(text.count("frac")):
        text, changed = _FRACTION.subn(r"((\1)/(\2))", text)
        if not changed:
            break
    for written, meant in _LATEX:
        text = text.replace(written, meant)
    return text


def _target(prompt: Prompt) -> Fraction | None:
    value = meta_value(prompt, "target")
    try:
        return Fraction(prompt.reference or "" if value is None else value)
    except (TypeError, ValueError, ZeroDivisionError):
        return None


def _shown(value: Fraction | float) -> str:
    text = str(value)
    return text if len(text) <= 30 else f"{float(value):g}"
