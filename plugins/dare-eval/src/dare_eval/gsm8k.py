"""GSM8K: word problems whose answer is a number.

Reads the reference: a number, or a worked solution that ends with ``#### number``. Rules:

* ``accuracy``: 1 if the response's answer equals the reference as a number (``1,200``, ``$1200.00`` and ``1200`` are
  equal), else 0. The answer is what the response marks: the last box, else the last closed answer tag, else what
  follows the last ``####``, else the number after the last "answer is"; without a mark the last number of the text.
* ``d1`` (d1, arXiv 2504.12216; also CJ-GRPO and wd1): the sum of five parts, see :func:`shaped_parts`. Correctness
  compares strings. The status tells about the correctness part alone; ``parts`` holds each.
* ``d-treerpo`` (d-TreeRPO): the same with correctness 1 instead of 2.
* ``justgrpo`` (JustGRPO, arXiv 2601.15165): 1 or -1. The answer is the last box, else what follows the last "answer
  is", else the last number; nothing but a number may stand there, and it may also be 100 times the reference or a
  hundredth of it.
"""

from __future__ import annotations

import re
from fractions import Fraction

from dare_core.types import Prompt, Verdict, VerdictStatus
from dare_eval.answers import after_last_answer_tag, last_box, marked_answer, one_line
from dare_eval.config import Gsm8kSection
from dare_eval.judging import ItemReward, signed
from dare_eval.number_text import bare_number, ends_with_number, number_of

_ANSWER_IS = re.compile(r"answer\s+is\b|answer\s*:", re.IGNORECASE)
_TAGS_IN_LINE = re.compile(r"</reasoning>[^\S\n]*<answer>")
_STRICT = re.compile(r"<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$")
_CORRECTNESS = {"d1": 2.0, "d-treerpo": 1.0}


class Gsm8kReward(ItemReward):
    """``reward: {kind: gsm8k}``."""

    config: Gsm8kSection

    def lacks(self, prompt: Prompt) -> str | None:
        """The reference, if it is missing or holds no number."""
        if prompt.reference is None:
            return "gsm8k compares with the reference answer; set data.reference"
        if self.config.score in ("accuracy", "justgrpo") and reference_number(prompt.reference) is None:
            return f"gsm8k reads a number, or a solution ending with '#### number', not {one_line(prompt.reference)!r}"
        return None

    def judge_one(self, prompt: Prompt, response: str) -> Verdict:
        """See the module's head."""
        missing = self.lacks(prompt)
        if missing:
            raise ValueError(missing)
        reference = prompt.reference or ""
        if self.config.score == "accuracy":
            return _accuracy(response, reference_number(reference))
        if self.config.score == "justgrpo":
            return signed(_percent_accuracy(response, reference_number(reference)))
        return _shaped(response, final_answer(reference), _CORRECTNESS[self.config.score])


def shaped_parts(response: str, reference: str, correctness: float) -> dict[str, float]:
    """The five parts of d1's reward.

    ``correctness``: the text of the last answer tag (the whole response without tags) is the reference, as a string.
    ``integer``: 0.5 if that text is digits only (any script's, superscripts too; no sign). ``soft_format``: 0.5 if the
    response starts with a reasoning and an answer tag whose contents hold no line break. ``strict_format``: 0.5 if it
    is exactly these tags, each on its line, with one-line contents. ``tags``: see :func:`tag_score`.
    """
    answer = after_last_answer_tag(response)
    return {
        "correctness": correctness if answer == reference else 0.0,
        "integer": 0.5 if answer.isdigit() else 0.0,
        "soft_format": 0.5 if _starts_tagged(response) else 0.0,
        "strict_format": 0.5 if _STRICT.match(response) else 0.0,
        "tags": tag_score(response),
    }


def tag_score(response: str) -> float:
    """0.125 for each of the four tags that stands exactly once with its line breaks, less 0.001 per character after
    the closing one. Negative where much text follows."""
    score = 0.0
    if response.count("<reasoning>\n") == 1:
        score += 0.125
    if response.count("\n</reasoning>\n") == 1:
        score += 0.125
    if response.count("\n<answer>\n") == 1:
        score += 0.125
        score -= 0.001 * len(response.split("\n</answer>\n")[-1])
    if response.count("\n</answer>") == 1:
        score += 0.125
        score -= 0.001 * (len(response.split("\n</answer>")[-1]) - 1)
    return score


def _starts_tagged(response: str) -> bool:
    """Whether ``<reasoning>..</reasoning>``, blanks, ``<answer>..</answer>`` begin the response, no line break inside.

    Equal to the pattern ``<reasoning>.*?</reasoning>\\s*<answer>.*?</answer>`` but linear in the length.
    """
    if not response.startswith("<reasoning>"):
        return False
    first, _, rest = response.partition("\n")
    both = _TAGS_IN_LINE.search(first, len("<reasoning>"))
    if both is not None and first.find("</answer>", both.end()) >= 0:
        return True
    second = rest.lstrip().partition("\n")[0]
    return first.rstrip().endswith("</reasoning>") and second.startswith("<answer>") and "</answer>" in second


def final_answer(reference: str) -> str:
    """What follows ``####`` in a worked solution, else the reference as it is."""
    return reference.rpartition("####")[2].strip() if "####" in reference else reference


def reference_number(reference: str) -> Fraction | None:
    """The reference as a number; None if it is not one."""
    return number_of(final_answer(reference))


def response_number(response: str) -> tuple[Fraction | None, str]:
    """The response's answer as a number (None if there is none), and the text it was read from."""
    marked = marked_answer(response)
    if marked is None and "####" in response:
        marked = response.rpartition("####")[2].lstrip().partition("\n")[0]
    if marked is not None:
        return number_of(marked), marked
    sentence = announced(response)
    if sentence is not None:
        return number_of(sentence), sentence
    return ends_with_number(response), response[-60:]


def announced(response: str) -> str | None:
    """What follows the last "answer is", up to the sentence's end; None without it."""
    ends = [match.end() for match in _ANSWER_IS.finditer(response)]
    return re.split(r"\n|\.\s|\.$", response[ends[-1] :].lstrip(" :"), maxsplit=1)[0] if ends else None


def _percent_accuracy(response: str, gold: Fraction | None) -> Verdict:
    box = last_box(response)
    answer = announced(response) if box is None else box
    number = ends_with_number(response) if answer is None else bare_number(answer)
    if number is None or gold is None:
        return Verdict(0.0, VerdictStatus.UNPARSED if response.strip() else VerdictStatus.EMPTY)
    right = number in (gold, gold * 100, gold / 100)
    return Verdict(float(right), VerdictStatus.CORRECT if right else VerdictStatus.WRONG, one_line(str(number)))


def _accuracy(response: str, gold: Fraction | None) -> Verdict:
    if not response.strip():
        return Verdict(0.0, VerdictStatus.EMPTY)
    number, read = response_number(response)
    if number is None:
        return Verdict(0.0, VerdictStatus.UNPARSED, f"no number in {one_line(read)!r}")
    correct = number == gold
    return Verdict(float(correct), VerdictStatus.CORRECT if correct else VerdictStatus.WRONG, one_line(str(number)))


def _shaped(response: str, reference: str, correctness: float) -> Verdict:
    parts = shaped_parts(response, reference, correctness)
    if not response.strip():
        status = VerdictStatus.EMPTY
    else:
        status = VerdictStatus.CORRECT if parts["correctness"] else VerdictStatus.WRONG
    return Verdict(sum(parts.values()), status, one_line(after_last_answer_tag(response)), parts)
