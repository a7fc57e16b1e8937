"""What the rewards of this package share: one response at a time, own failures as verdicts, fields of a prompt."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dare_core.api import Problem, UserError
from dare_core.interfaces import Reward
from dare_core.types import Prompt, Verdict, VerdictStatus

#: prompts named in an error message before it says how many more there are
NAMED = 5


class ItemReward(Reward):
    """A reward that judges each response on its own, in the calling thread."""

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Verdict]:
        """One verdict per (prompt, response), in order."""
        return [self._guarded(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Look whether every prompt has what this reward reads.

        Raises:
            UserError: names the prompts that lack it.
        """
        require(prompts, self.lacks)

    @abstractmethod
    def lacks(self, prompt: Prompt) -> str | None:
        """What ``prompt`` lacks for this reward, or None."""

    @abstractmethod
    def judge_one(self, prompt: Prompt, response: str) -> Verdict:
        """The verdict; raising means that the verifier failed, not that the response is wrong."""

    def _guarded(self, prompt: Prompt, response: str) -> Verdict:
        try:
            return self.judge_one(prompt, response)
        except Exception as error:  # the contract: a verifier's own failure is a verdict, never an exception
            return Verdict(None, VerdictStatus.ERROR, f"{type(error).__name__}: {error}"[:300])


def signed(verdict: Verdict) -> Verdict:
    """1 for a right response, -1 for any other that was judged (JustGRPO, arXiv 2601.15165)."""
    if verdict.score is None:
        return verdict
    return replace(verdict, score=1.0 if verdict.status is VerdictStatus.CORRECT else -1.0)


def require(prompts: Sequence[Prompt], lacks: Callable[[Prompt], str | None]) -> None:
    """Name the prompts for which ``lacks`` says that something is missing.

    Raises:
        UserError: one problem per prompt for the first few, then a count.
    """
    found = [(prompt, missing) for prompt in prompts if (missing := lacks(prompt)) is not None]
    if not found:
        return
    problems = [Problem(missing, where=f"row {prompt.id!r}") for prompt, missing in found[:NAMED]]
    if len(found) > NAMED:
        problems.append(Problem(f"{len(found) - NAMED} more rows lack the same"))
    raise UserError(problems)


def meta_value(prompt: Prompt, name: str) -> Any:
    """The field ``name`` of the prompt's meta, at its top or nested (``metadata.numbers``); None if missing."""
    layers: list[Mapping[str, Any]] = [prompt.meta]
    while layers:
        for layer in layers:
            if name in layer:
                return layer[name]
        layers = [value for layer in layers for value in layer.values() if isinstance(value, Mapping)]
    return None


def meta_numbers(prompt: Prompt, name: str) -> list[int] | None:
    """A list of whole numbers in meta, or their JSON text; None if it is neither."""
    value = meta_value(prompt, name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, (list, tuple)) or not value:
        return None
    return list(value) if all(isinstance(item, int) and not isinstance(item, bool) for item in value) else None
