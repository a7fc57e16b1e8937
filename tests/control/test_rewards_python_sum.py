"""Rewards that are callables, and sums of rewards."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dare_core.api import SectionConfig
from dare_core.builtin import dare_rewards
from dare_core.components import Component
from dare_core.errors import UserError
from dare_core.interfaces import Reward
from dare_core.rewards.config import MatchSection, PythonSection, RewardPart, SumSection
from dare_core.rewards.python import PythonReward
from dare_core.rewards.sum import SumReward
from dare_core.spec.plan import Choice
from dare_core.types import Prompt, Verdict, VerdictStatus

PROMPT = Prompt(id="p", index=0, text="q", reference="5")
MODULE = """
import math, sys
from dare_core.types import Verdict, VerdictStatus

def length(prompt, response): return len(response)
def equal(prompt, response): return response == prompt.reference
def half(prompt, response): return 0.5
def own(prompt, response): return Verdict(0.25, VerdictStatus.UNPARSED, "mine")
def fails(prompt, response): raise KeyError("missing")
def leaves(prompt, response): sys.exit(3)
def nan(prompt, response): return math.nan
def nan_verdict(prompt, response): return Verdict(math.nan, VerdictStatus.CORRECT)
def huge(prompt, response): return 10**400
def lines(prompt, response): raise ValueError("two\\nlines")
def text(prompt, response): return "1.0"
def none(prompt, response): pass
def one_argument(response): return 1.0
VALUE = 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_rewards_for_tests", raising=False)
    (tmp_path / "my_rewards_for_tests.py").write_text(MODULE)
    return tmp_path


def call(package: Path, name: str, response: str = "5", **options: Any) -> Verdict:
    section = PythonSection(function=f"my_rewards_for_tests:{name}", search_path=str(package), **options)
    return PythonReward(section).judge([PROMPT], [response])[0]


@pytest.mark.parametrize(
    ("name", "score", "status"),
    [
        ("length", 1.0, "correct"),
        ("equal", 1.0, "correct"),
        ("half", 0.5, "wrong"),
        ("own", 0.25, "unparsed"),
    ],
)
def test_numbers_bools_and_verdicts_are_taken(package: Path, name: str, score: float, status: str) -> None:
    verdict = call(package, name)
    assert (verdict.score, verdict.status.value) == (score, status)


def test_the_full_score_decides_what_counts_as_correct(package: Path) -> None:
    assert call(package, "half", full_score=0.5).status is VerdictStatus.CORRECT
    assert call(package, "equal", response="6").status is VerdictStatus.WRONG


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("fails", "my_rewards_for_tests:fails: KeyError: 'missing'"),
        ("leaves", "SystemExit: 3"),
        ("nan", "returned nan"),
        ("nan_verdict", "neither a finite number nor a verdict"),
        ("huge", "OverflowError"),
        ("lines", "ValueError: two lines"),
        ("text", "returned '1.0'"),
        ("none", "returned None"),
    ],
)
def test_failures_are_errors_with_their_cause_and_never_scores(package: Path, name: str, detail: str) -> None:
    verdict = call(package, name)
    assert verdict.status is VerdictStatus.ERROR
    assert verdict.score is None
    assert detail in verdict.detail


def test_the_working_directory_is_not_searched_unless_asked(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(package))])
    with pytest.raises(UserError, match=r"cannot be imported.*search_path"):
        PythonReward(PythonSection(function="my_rewards_for_tests:half"))
    assert PythonReward(PythonSection(function="my_rewards_for_tests:half", search_path=".")).judge([PROMPT], ["x"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "has no callable 'absent'; it has .*half"),
        ("VALUE", "has no callable 'VALUE'"),
        ("one_argument", r"must take \(prompt, response\)"),
    ],
)
def test_unusable_callables_are_refused_before_training(package: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(package, name)


def test_a_missing_search_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        PythonReward(PythonSection(function="m:f", search_path=str(tmp_path / "no")))


class FixedSection(SectionConfig):
    verdict: Any


class Fixed(Reward):
    config: FixedSection
    closed = 0

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Verdict]:
        return [self.config.verdict for _ in responses]

    def check(self, prompts: Sequence[Prompt]) -> None:
        raise UserError("looked")

    def close(self) -> None:
        Fixed.closed += 1


def fixed(kind: str, score: float | None, status: str, detail: str = "") -> Choice:
    component = Component(
        kind=kind, target=f"{__name__}:Fixed", config=f"{__name__}:FixedSection", summary="answers what it is told"
    )
    config = FixedSection(verdict=Verdict(score, VerdictStatus(status), detail))
    return Choice(component=component, distribution="tests 0", config=config)


@pytest.fixture
def total() -> Any:
    def judged(*parts: tuple[float, Choice]) -> Verdict:
        config = SumSection(parts=tuple(RewardPart(weight=weight, reward=choice) for weight, choice in parts))
        return SumReward(config).judge([PROMPT], ["5"])[0]

    return judged


def test_scores_add_up_with_their_weights_and_parts_are_kept_unweighted(total: Any) -> None:
    verdict = total((2.0, fixed("task", 1.0, "correct", "72")), (-0.5, fixed("length", 3.0, "correct")))
    assert verdict == Verdict(0.5, VerdictStatus.CORRECT, "task: 72", parts={"task": 1.0, "length": 3.0})


def test_a_part_that_does_not_apply_is_skipped(total: Any) -> None:
    verdict = total((1.0, fixed("task", 1.0, "correct")), (9.0, fixed("code", None, "not-applicable")))
    assert (verdict.score, verdict.status.value, verdict.parts) == (1.0, "correct", {"task": 1.0})


def test_no_applicable_part_makes_the_sum_not_applicable(total: Any) -> None:
    verdict = total((1.0, fixed("code", None, "not-applicable")))
    assert (verdict.score, verdict.status.value) == (None, "not-applicable")


def test_a_failed_part_fails_the_sum_and_is_named(total: Any) -> None:
    verdict = total((1.0, fixed("task", 1.0, "correct")), (1.0, fixed("code", None, "error", "no sandbox")))
    assert (verdict.score, verdict.status.value, verdict.detail) == (None, "error", "code: no sandbox")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (("correct", "correct"), "correct"),
        (("correct", "wrong"), "wrong"),
        (("wrong", "unparsed"), "unparsed"),
        (("unparsed", "empty"), "empty"),
        (("empty", "timeout"), "timeout"),
    ],
)
def test_the_status_is_the_worst_of_the_parts(total: Any, statuses: tuple[str, str], expected: str) -> None:
    parts = [(1.0, fixed(f"part{n}", 0.0, status)) for n, status in enumerate(statuses)]
    assert total(*parts).status.value == expected


def test_parts_of_one_kind_are_numbered(total: Any) -> None:
    assert total((1.0, fixed("a", 1.0, "correct")), (1.0, fixed("a", 0.0, "wrong"))).parts == {"a": 1.0, "a-2": 0.0}


def test_check_and_close_reach_the_parts(total: Any) -> None:
    part = RewardPart(reward=fixed("task", 1.0, "correct"))
    reward = SumReward(SumSection(parts=(part, part)))
    with pytest.raises(UserError, match="looked"):
        reward.check([PROMPT])
    before = Fixed.closed
    reward.close()
    assert Fixed.closed == before + 2


def test_a_sum_of_builtin_rewards_is_built_from_their_components() -> None:
    match = next(component for component in dare_rewards() if component.kind == "match")
    exact = Choice(component=match, distribution="dare-core 0", config=MatchSection())
    number = Choice(
        component=match, distribution="dare-core 0", config=MatchSection(extract="last-number", compare="number")
    )
    reward = SumReward(SumSection(parts=(RewardPart(weight=0.2, reward=exact), RewardPart(reward=number))))
    verdicts = reward.judge([PROMPT, PROMPT], ["5", "it is 5"])
    assert [verdict.score for verdict in verdicts] == [1.2, 1.0]
    assert [verdict.status.value for verdict in verdicts] == ["correct", "wrong"]
