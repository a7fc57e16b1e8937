"""MATH: answers that are mathematical expressions.

Reads the reference: the answer in LaTeX, or text that holds it in a box. Rules:

* ``math-verify`` (default): mathematical equality by the library of that name; a box first, else LaTeX or a number in
  the text. Several boxes are read as a set.
* ``coupled-grpo`` (Coupled-GRPO, arXiv 2506.20639, and MDPO): the same library, but only a boxed or announced answer in
  LaTeX counts.
* ``dare``: see ``dare_math``.
* ``d1`` (d1, arXiv 2504.12216): 2 for string equality after normalisation, of the last box or else the whole response,
  plus 0.75 with an answer tag and 0.25 without. The published format part means to reward boxes too, but its pattern
  for them never matches; this is what trained the published models. The status tells about the equality alone.
* ``d-treerpo`` (d-TreeRPO): 1 for that equality, looking inside the last answer tag; no format part.
* ``justgrpo`` (JustGRPO, arXiv 2601.15165): as ``math-verify``, 1 or -1. The authors' own comparison reads a number
  without a box from reply and reference alike.

All but the two that compare strings run in worker processes with a time limit per response: see ``verifier_pool``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare_core.interfaces import Reward
from dare_core.types import Prompt, Verdict, VerdictStatus
from dare_eval.answers import after_last_answer_tag, one_line
from dare_eval.config import MathSection
from dare_eval.countdown import published_box
from dare_eval.judging import ItemReward, require, signed
from dare_eval.latex_equality import equal_strings
from dare_eval.verifier_pool import Reply, VerifierPool

FORMAT_WITH_TAG = 0.75
FORMAT_WITHOUT = 0.25


class MathReward(Reward):
    """``reward: {kind: math}``."""

    config: MathSection

    def __init__(self, config: MathSection) -> None:
        super().__init__(config)
        self._strings = StringMath(config)
        self._pool: VerifierPool | None = None
        if config.score not in ("d1", "d-treerpo"):
            self._pool = VerifierPool("dare_eval.verify_math:judge", config.workers, config.memory_mb)

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Verdict]:
        """One verdict per (prompt, response), in order."""
        if self._pool is None:
            return self._strings.judge(prompts, responses)
        pairs = list(zip(prompts, responses, strict=True))
        verdicts = [_without_checking(prompt, response) for prompt, response in pairs]
        rule = "math-verify" if self.config.score == "justgrpo" else self.config.score
        open_ones = [index for index, verdict in enumerate(verdicts) if verdict is None]
        items = [
            {"rule": rule, "reference": pairs[index][0].reference, "response": pairs[index][1]} for index in open_ones
        ]
        for index, reply in zip(open_ones, self._pool.ask(items, self.config.time_limit), strict=True):
            verdicts[index] = _verdict(reply)
        judged = [verdict for verdict in verdicts if verdict is not None]
        return [signed(verdict) for verdict in judged] if self.config.score == "justgrpo" else judged

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Look whether every prompt has a reference.

        Raises:
            UserError: names the prompts without one.
        """
        require(prompts, self._strings.lacks)

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.close()


class StringMath(ItemReward):
    """The rules that compare strings: ``d1`` and ``d-treerpo``."""

    config: MathSection

    def lacks(self, prompt: Prompt) -> str | None:
        """The reference, if missing."""
        if prompt.reference is None or not prompt.reference.strip():
            return "math compares with the reference answer; set data.reference"
        return None

    def judge_one(self, prompt: Prompt, response: str) -> Verdict:
        """See the module's head."""
        missing = self.lacks(prompt)
        if missing:
            raise ValueError(missing)
        gold = boxed_or_whole(prompt.reference or "")
        answer = boxed_or_whole(response if self.config.score == "d1" else after_last_answer_tag(response))
        right = equal_strings(answer, gold)
        status = VerdictStatus.CORRECT if right else VerdictStatus.WRONG
        if not response.strip():
            status = VerdictStatus.EMPTY
        if self.config.score == "d-treerpo":
            return Verdict(float(right), status, one_line(answer))
        parts = {"correctness": 2.0 * right, "format": FORMAT_WITH_TAG if "<answer>" in response else FORMAT_WITHOUT}
        return Verdict(sum(parts.values()), status, one_line(answer), parts)


def boxed_or_whole(text: str) -> str:
    """Content of the last box; the whole text if there is none, or if it is never closed."""
    if "\\boxed " not in text and "\\boxed{" not in text:
        return text
    box = published_box(text)
    return text if box is None else box


def _without_checking(prompt: Prompt, response: str) -> Verdict | None:
    """The verdict where there is nothing to compare."""
    if not response.strip():
        return Verdict(0.0, VerdictStatus.EMPTY)
    if prompt.reference is None or not prompt.reference.strip():
        return Verdict(None, VerdictStatus.ERROR, f"prompt {prompt.id!r} has no reference answer")
    return None


def _verdict(reply: Reply) -> Verdict:
    if reply.failure == "timeout":
        return Verdict(0.0, VerdictStatus.TIMEOUT, reply.detail)
    if reply.failure == "error" or reply.result is None:
        return Verdict(None, VerdictStatus.ERROR, reply.detail)
    return _result(reply.result)


def _result(result: Mapping[str, Any]) -> Verdict:
    status = VerdictStatus(result["status"])
    return Verdict(float(status is VerdictStatus.CORRECT), status, result["detail"])
