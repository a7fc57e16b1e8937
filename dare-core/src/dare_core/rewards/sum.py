"""Weighted sum of other rewards.

A part that does not apply to a row is skipped; if none applies, neither does the sum. A part that fails makes the
whole verdict an error, since a sum without it would be another reward. The status is ``correct`` if all parts that
apply are, else the worst of theirs: timeout, empty, unparsed, wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from dare_core.interfaces.reward import Reward
from dare_core.rewards.config import SumSection
from dare_core.types.examples import Prompt, Verdict, VerdictStatus

_WORST_FIRST = (
    VerdictStatus.TIMEOUT,
    VerdictStatus.EMPTY,
    VerdictStatus.UNPARSED,
    VerdictStatus.WRONG,
    VerdictStatus.CORRECT,
)


class SumReward(Reward):
    """The reward ``sum``. Its section's parts are resolved components (:mod:`dare_core.spec.slots`), built here as
    ``part.reward.target()(part.reward.config)``, so any installed reward can be a part, sums too.

    ``parts`` of its verdicts hold each part's own score, without its weight, by kind; parts
    of one kind are numbered (``match``, ``match-2``)."""

    config: SumSection

    def __init__(self, config: SumSection) -> None:
        super().__init__(config)
        self._parts: list[tuple[str, float, Reward]] = []
        names: list[str] = []
        for part in config.parts:
            kind = part.reward.name
            names.append(kind)
            label = kind if names.count(kind) == 1 else f"{kind}-{names.count(kind)}"
            self._parts.append((label, part.weight, part.reward.target()(part.reward.config)))

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Verdict]:
        """See :meth:`Reward.judge`."""
        columns = [reward.judge(prompts, responses) for _, _, reward in self._parts]
        return [self._add(verdicts) for verdicts in zip(*columns, strict=True)]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Let every part look."""
        for _, _, reward in self._parts:
            reward.check(prompts)

    def close(self) -> None:
        """Close every part."""
        for _, _, reward in self._parts:
            reward.close()

    def _add(self, verdicts: Sequence[Verdict]) -> Verdict:
        judged = [(label, weight, v) for (label, weight, _), v in zip(self._parts, verdicts, strict=True)]
        failed = [f"{label}: {v.detail}" for label, _, v in judged if v.status == VerdictStatus.ERROR]
        if failed:
            return Verdict(None, VerdictStatus.ERROR, "; ".join(failed))
        scores = {label: v.score for label, _, v in judged if v.score is not None}
        if not scores:
            return Verdict(None, VerdictStatus.NOT_APPLICABLE, "no part applies")
        present = {v.status for _, _, v in judged}
        return Verdict(
            score=sum(weight * scores[label] for label, weight, _ in judged if label in scores),
            status=next(status for status in _WORST_FIRST if status in present),
            detail="; ".join(f"{label}: {v.detail}" for label, _, v in judged if v.detail),
            parts=scores,
        )
