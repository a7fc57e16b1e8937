"""Judges: rules and rewards behind one interface, so that tasks name either."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from dare_core.api import Problem, SectionConfig, UserError
from dare_core.interfaces import Reward
from dare_core.types import Prompt, VerdictStatus
from dare_eval.config import CountdownSection, Gsm8kSection, MathSection, SudokuSection
from dare_eval.countdown import CountdownReward
from dare_eval.gsm8k import Gsm8kReward
from dare_eval.judging import meta_value, require
from dare_eval.math_reward import MathReward
from dare_eval.scoring.rules import TEXT_RULES, TextRule
from dare_eval.sudoku import SudokuReward


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What became of one response.

    Attributes:
        answer: what was read from it, as text; None where nothing was found.
        score: 1 = right; None where the judge itself failed.
        status: how it came about.
        detail: one line for people.
        parts: further numbers of the rule.
    """

    answer: str | None
    score: float | None
    status: VerdictStatus
    detail: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


class Judge(ABC):
    """Judges responses; never raises on what a model wrote."""

    @abstractmethod
    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Judged]:
        """One result per (prompt, response), in order."""

    @abstractmethod
    def check(self, prompts: Sequence[Prompt]) -> None:
        """Look whether every prompt has what the rule reads.

        Raises:
            UserError: names those that lack it.
        """

    def close(self) -> None:
        """Free worker processes."""


class RuleJudge(Judge):
    """A text rule by name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rule: TextRule = TEXT_RULES[name]

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Judged]:
        """See :class:`Judge`."""
        return [self._one(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """See :class:`Judge`."""
        require(prompts, self._lacks)

    def _lacks(self, prompt: Prompt) -> str | None:
        for name in self._rule.needs:
            value = prompt.reference if name == "reference" else meta_value(prompt, name)
            if value is None or value == "":
                return f"has no {name}, which the rule '{self._name}' reads"
        return None

    def _one(self, prompt: Prompt, response: str) -> Judged:
        try:
            answer = self._rule.read(response, prompt)
            if answer is None:
                empty = not response.strip()
                return Judged(answer=None, score=0.0, status=VerdictStatus.EMPTY if empty else VerdictStatus.UNPARSED)
            score, parts = self._rule.grade(answer, prompt)
        except Exception as error:  # a rule's own failure is never a wrong answer
            detail = f"{type(error).__name__}: {error}"[:300]
            return Judged(answer=None, score=None, status=VerdictStatus.ERROR, detail=detail)
        status = VerdictStatus.CORRECT if score == 1 else VerdictStatus.WRONG
        return Judged(answer=str(answer), score=score, status=status, parts=parts)


class RewardJudge(Judge):
    """A reward of this package: the same verifier as in training."""

    def __init__(self, reward: Reward) -> None:
        self._reward = reward

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Judged]:
        """See :class:`Judge`. The answer is the verdict's detail where one was read."""
        verdicts = self._reward.judge(prompts, responses)
        read = (VerdictStatus.CORRECT, VerdictStatus.WRONG)
        return [
            Judged(answer=v.detail if v.status in read else None, score=v.score, status=v.status, detail=v.detail,
                   parts=dict(v.parts))
            for v in verdicts
        ]  # fmt: skip

    def check(self, prompts: Sequence[Prompt]) -> None:
        """See :class:`Judge`."""
        self._reward.check(prompts)

    def close(self) -> None:
        """See :class:`Judge`."""
        self._reward.close()


def _reward(target: Callable[[Any], Reward], section: type[SectionConfig]) -> Callable[[Mapping[str, Any]], Judge]:
    return lambda options: RewardJudge(target(section.model_validate(dict(options))))


def _rule(name: str) -> Callable[[Mapping[str, Any]], Judge]:
    def build(options: Mapping[str, Any]) -> Judge:
        if options:
            raise UserError(Problem(f"rule '{name}' has no options, but {', '.join(options)} was given"))
        return RuleJudge(name)

    return build


#: name -> builder from options
JUDGES: Mapping[str, Callable[[Mapping[str, Any]], Judge]] = MappingProxyType(
    {
        "gsm8k": _reward(Gsm8kReward, Gsm8kSection),
        "math": _reward(MathReward, MathSection),
        "countdown": _reward(CountdownReward, CountdownSection),
        "sudoku": _reward(SudokuReward, SudokuSection),
        **{name: _rule(name) for name in TEXT_RULES},
    }
)


def build_judge(name: str, options: Mapping[str, Any]) -> Judge:
    """The judge called ``name``.

    Raises:
        UserError: there is none (near names), or its options are wrong.
    """
    if name not in JUDGES:
        near = get_close_matches(name, JUDGES, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(JUDGES))}"
        raise UserError(Problem(f"unknown scoring rule '{name}'", path="scoring.rule", hint=hint))
    try:
        return JUDGES[name](options)
    except ValidationError as error:
        problems = [
            Problem(found["msg"], path=".".join(["scoring.options", *map(str, found["loc"])]))
            for found in error.errors()
        ]
        raise UserError(problems) from error
