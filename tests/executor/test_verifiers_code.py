"""The code reward: tests that pass, the form, and what runs only when it is allowed."""

from __future__ import annotations

from contextlib import closing

import pytest

from dare_core.api import UserError
from dare_core.types import Prompt, VerdictStatus
from dare_eval.code_reward import CodeReward
from dare_eval.config import CodeRewardSection

TESTS = ["assert double(2) == 4", "assert double(3) == 6", "assert double(0) == 1", "assert double(1) == 2"]
RIGHT = "Here:\n```python\ndef double(x):\n    return 2 * x\n```\n"


def prompt(**meta) -> Prompt:
    return Prompt("p", 0, text="double a number", meta=meta)


def judged(score: str, response: str, tests: object = TESTS, **meta):
    with closing(CodeReward(CodeRewardSection(score=score, allow_code_execution=True))) as reward:
        return reward.judge([prompt(tests=tests, **meta)], [response])[0]


@pytest.mark.parametrize(
    ("score", "response", "expected"),
    [
        ("tests", RIGHT, 0.0),
        ("dare", RIGHT, 0.0),
        ("coupled-grpo", RIGHT, 2 * 0.75 + 0.5),
        ("coupled-grpo", RIGHT.rstrip(), 0.0),  # no line break behind the fence: no form, and nothing is run
        ("justgrpo", RIGHT.rstrip(), 0.75 + 1.0),
        ("justgrpo", RIGHT + "Done.", 0.75),
        ("coupled-grpo", "```python\ndef double(x:\n```\n", 0.25),
    ],
)
def test_each_published_score_weighs_tests_and_form_as_published(score, response, expected):
    assert judged(score, response).score == pytest.approx(expected)


def test_all_tests_passed_is_the_full_score():
    for score, full in (("tests", 1.0), ("dare", 1.0), ("coupled-grpo", 2.5), ("justgrpo", 2.0)):
        verdict = judged(score, RIGHT, TESTS[:2])
        assert (verdict.score, verdict.status) == (full, VerdictStatus.CORRECT)


def test_a_bare_program_counts_for_ours_and_not_where_a_fence_is_asked_for():
    bare = "def double(x):\n    return 2 * x\n"
    assert judged("tests", bare, TESTS[:2]).score == 1
    verdict = judged("dare", bare, TESTS[:2])
    assert (verdict.score, verdict.status) == (0.0, VerdictStatus.UNPARSED)


def test_a_stub_is_completed_and_checked_by_its_function():
    verdict = judged(
        "tests",
        "    return 2 * x",
        "def check(f):\n    assert f(2) == 4",
        stub="def double(x):\n",
        entry_point="double",
    )
    assert verdict.score == 1


def test_an_endless_program_is_a_timeout():
    with closing(CodeReward(CodeRewardSection(allow_code_execution=True, time_limit=1.0))) as reward:
        verdict = reward.judge([prompt(tests=TESTS)], ["```python\nwhile True: pass\n```\n"])[0]
    assert (verdict.score, verdict.status) == (0.0, VerdictStatus.TIMEOUT)


def test_nothing_runs_unless_it_is_allowed():
    with pytest.raises(UserError, match="runs programs that the model wrote"):
        CodeReward(CodeRewardSection())
    with closing(CodeReward(CodeRewardSection(score="coupled-format"))) as reward:
        assert reward.judge([prompt()], [RIGHT])[0].score == 1


def test_rows_without_tests_are_named_before_the_run():
    with closing(CodeReward(CodeRewardSection(allow_code_execution=True))) as reward:
        with pytest.raises(UserError, match="meta field 'tests'"):
            reward.check([prompt()])
        assert reward.judge([prompt()], [RIGHT])[0].status is VerdictStatus.ERROR
