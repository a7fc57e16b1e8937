r"""Extract an answer by a rule and compare it with the reference, as text or as an exact number.

Status: ``correct`` and ``wrong`` need an answer; ``unparsed`` means that the rule found none (or, for numbers, none
that reads as one); ``empty`` that the response is blank. At most the last 100,000 characters of a response are looked
at (the first ones for ``occurrence: first``), and a regular expression gets ``regex_seconds``, then the verdict is
``timeout``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from dare_core.errors import Problem, UserError
from dare_core.interfaces.reward import Reward
from dare_core.rewards import extract
from dare_core.rewards.config import MatchSection
from dare_core.rewards.numbers import read_number
from dare_core.rewards.regex_worker import RegexProcess, RegexTimeoutError
from dare_core.types.examples import Prompt, Verdict, VerdictStatus

MAX_CHARACTERS = 100_000
_SHOWN_PROBLEMS = 20
_DETAIL = 200


class Match(Reward):
    """The reward ``match``."""

    config: MatchSection

    def __init__(self, config: MatchSection) -> None:
        super().__init__(config)
        self._regex = RegexProcess()

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Verdict]:
        """See :meth:`Reward.judge`. A prompt without a usable reference gives ``error``."""
        return [self._judge(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Look at all references.

        Raises:
            UserError: prompts have no reference, or one that the rule or the comparison cannot read.
        """
        problems = [
            Problem(fault, where=f"row '{prompt.id}'", hint="see 'reference' in the data section")
            for prompt in prompts
            if (fault := self._reference_fault(prompt)) is not None
        ]
        if len(problems) > _SHOWN_PROBLEMS:
            problems = [*problems[:_SHOWN_PROBLEMS], Problem(f"and {len(problems) - _SHOWN_PROBLEMS} more rows")]
        if problems:
            raise UserError(problems)

    def close(self) -> None:
        """End the process that searches for regular expressions."""
        self._regex.close()

    def _judge(self, prompt: Prompt, response: str) -> Verdict:
        fault = self._reference_fault(prompt)
        if fault is not None:
            return Verdict(None, VerdictStatus.ERROR, fault)
        if not response.strip():
            return Verdict(self.config.unparsed_score, VerdictStatus.EMPTY, "the response is empty")
        try:
            answer = self._extract(response)
        except RegexTimeoutError:
            detail = f"the pattern took longer than {self.config.regex_seconds} s"
            return Verdict(self.config.unparsed_score, VerdictStatus.TIMEOUT, detail)
        except OSError as error:
            return Verdict(None, VerdictStatus.ERROR, f"{type(error).__name__}: {error}")
        if not answer:
            return Verdict(self.config.unparsed_score, VerdictStatus.UNPARSED, f"no answer by '{self.config.extract}'")
        value = self._value(answer)
        if value is None:
            return Verdict(self.config.unparsed_score, VerdictStatus.UNPARSED, f"not a number: {_short(answer)}")
        if value == self._reference_value(prompt):
            return Verdict(self.config.correct_score, VerdictStatus.CORRECT, _short(answer))
        return Verdict(self.config.wrong_score, VerdictStatus.WRONG, _short(answer))

    def _extract(self, text: str) -> str | None:
        last = self.config.occurrence == "last"
        text = text[-MAX_CHARACTERS:] if last else text[:MAX_CHARACTERS]
        match self.config.extract:
            case "whole":
                return text.strip("\r\n") if self.config.whitespace == "exact" else text.strip()
            case "last-number":
                return extract.last_number(text)
            case "after":
                return extract.after_marker(text, self.config.marker or "", last)
            case "boxed":
                return extract.boxed(text, last)
            case "tag":
                return extract.tagged(text, self.config.tag, last)
            case "regex":
                return self._regex.find(self.config.pattern or "", text, last, self.config.regex_seconds)

    def _value(self, answer: str) -> str | Fraction | None:
        if self.config.compare == "number":
            return read_number(
                answer,
                commas=self.config.strip_commas,
                currency=self.config.strip_currency,
                percent=self.config.strip_percent,
            )
        if self.config.whitespace != "exact":
            answer = (" " if self.config.whitespace == "collapse" else "").join(answer.split())
        return answer.casefold() if self.config.ignore_case else answer

    def _reference_value(self, prompt: Prompt) -> str | Fraction | None:
        reference = prompt.reference or ""
        answer = self._extract(reference) if self.config.extract_from_reference else reference.strip()
        return self._value(answer) if answer else None

    def _reference_fault(self, prompt: Prompt) -> str | None:
        if prompt.reference is None or not prompt.reference.strip():
            return "there is no reference answer to compare with"
        try:
            value = self._reference_value(prompt)
        except (RegexTimeoutError, OSError) as error:
            return f"the reference could not be searched: {type(error).__name__}"
        if value is None:
            kind = "a number" if self.config.compare == "number" else f"an answer by '{self.config.extract}'"
            return f"the reference is not {kind}: {_short(prompt.reference)}"
        return None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _DETAIL else f"{line[:_DETAIL]}..."
