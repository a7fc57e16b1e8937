"""No text makes a verifier raise, hang or leave its range; no prompt does either."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dare_core.interfaces import Reward
from dare_core.types import Prompt, Verdict, VerdictStatus
from dare_eval.config import CountdownSection, Gsm8kSection, MathSection, SudokuSection
from dare_eval.countdown import CountdownReward
from dare_eval.gsm8k import Gsm8kReward
from dare_eval.math_reward import MathReward
from dare_eval.sudoku import SudokuReward

PIECES = [
    "<answer>", "</answer>", "<reasoning>", "</reasoning>", "\\boxed{", "}", "{", "\\boxed ", "\\fbox{", "####", "$",
    "answer is", "\n", " ", "(", ")", "+", "-", "*", "/", "**", "//", ".", "=", ",", "1", "2", "3", "4", "0", "12",
    "\\frac", "\\frac{1}{2}", "\\sqrt", "\\text{ cm}", "\\times", "^", "²", "７", "３", "٣", "½", "−", "x", "e9", "_",
    "3142243142131324", "\x00", "\ud800", "∞", "million",
]  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
PROMPT = Prompt("one", 0, text="q", reference="12", meta={"numbers": [2, 3, 4], "target": 12})
PUZZLE = Prompt("two", 0, text="q", reference="3142243142131324", meta={"puzzle": "3102200002100320"})
#: reward, prompt, lowest and highest score
CASES: list[tuple[Reward, Prompt, float, float]] = [
    (Gsm8kReward(Gsm8kSection()), PROMPT, 0, 1),
    (Gsm8kReward(Gsm8kSection(score="d1")), PROMPT, -float("inf"), 3.5),
    (Gsm8kReward(Gsm8kSection(score="d-treerpo")), PROMPT, -float("inf"), 2.5),
    (Gsm8kReward(Gsm8kSection(score="justgrpo")), PROMPT, -1, 1),
    (CountdownReward(CountdownSection()), PROMPT, 0, 1),
    (CountdownReward(CountdownSection(score="d1")), PROMPT, 0, 1),
    (CountdownReward(CountdownSection(score="mdpo")), PROMPT, 0, 1),
    (SudokuReward(SudokuSection()), PUZZLE, 0, 1),
    (SudokuReward(SudokuSection(score="d1")), PUZZLE, 0, 1),
    (MathReward(MathSection(score="d1")), PROMPT, 0.25, 2.75),
    (MathReward(MathSection(score="d-treerpo")), PROMPT, 0, 1),
]
NAMES = [f"{type(reward).__name__}-{reward.config.score}" for reward, *_ in CASES]  # type: ignore[attr-defined]


def judged(reward: Reward, prompt: Prompt, text: str) -> Verdict:
    [verdict] = reward.judge([prompt], [text])
    return verdict


@pytest.mark.parametrize(("reward", "prompt", "low", "high"), CASES, ids=NAMES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS)
def test_any_text_gets_a_score_within_bounds(
    reward: Reward, prompt: Prompt, low: float, high: float, text: str
) -> None:
    verdict = judged(reward, prompt, text)
    assert verdict.score is not None, f"{verdict.status}: {verdict.detail}"
    assert low <= verdict.score <= high
    if high == 1:
        assert (verdict.status is VerdictStatus.CORRECT) == (verdict.score == 1)
    if not text.strip():
        assert verdict.status is VerdictStatus.EMPTY


@pytest.mark.parametrize(("reward", "prompt", "low", "high"), CASES, ids=NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "<answer>" * 100_000,
        "</reasoning><answer>" * 50_000,
        "<reasoning>" + "</reasoning><answer>" * 50_000,
        "<reasoning>" + "</reasoning> " * 50_000 + " " * 200_000,
        "\\boxed{" * 100_000,
        "{" * 500_000 + "\\boxed{" + "}" * 500_000,
        "<answer>" + "(" * 300_000 + "1" + ")" * 300_000 + "</answer>",
        "<answer>" + "9" * 1_000_000 + "</answer>",
        "\\boxed{" + "1+" * 300_000 + "1}",
        "\\boxed{" + "\\frac{" * 50_000 + "1" + "}{2}" * 50_000 + "}",
        "1 " * 500_000,
        "0123456789+-*/() " * 50_000,
        "answer is " * 100_000,
        "####" * 250_000,
        "1," * 400_000,
        "\n" * 1_000_000,
    ],
    ids=lambda text: text[:24].encode("unicode_escape").decode(),
)
def test_a_megabyte_of_hostile_text_takes_moments(
    reward: Reward, prompt: Prompt, low: float, high: float, text: str
) -> None:
    start = time.process_time()
    verdict = judged(reward, prompt, text)
    assert time.process_time() - start < 2.0
    assert verdict.score is not None
    assert verdict.score <= high


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(TEXTS, min_size=4, max_size=8))
@pytest.mark.parametrize("score", ["math-verify", "coupled-grpo", "dare"])
def test_any_text_gets_a_verdict_from_the_workers(score: str, texts: list[str]) -> None:
    reward = POOLED[score]
    found = reward.judge([PROMPT] * len(texts), texts)
    assert len(found) == len(texts)
    for verdict in found:
        assert (verdict.score is None) == (verdict.status is VerdictStatus.ERROR)
        assert verdict.score in (None, 0.0, 1.0)


POOLED: dict[str, MathReward] = {}


@pytest.fixture(autouse=True, scope="module")
def _pooled() -> Any:
    for score in ("math-verify", "coupled-grpo", "dare"):
        POOLED[score] = MathReward(MathSection(score=score, workers=1, time_limit=2.0))
    yield
    for reward in POOLED.values():
        reward.close()
    POOLED.clear()


@pytest.mark.parametrize(("reward", "prompt", "low", "high"), CASES, ids=NAMES)
def test_prompt_without_a_reference_is_an_error_not_a_zero(
    reward: Reward, prompt: Prompt, low: float, high: float
) -> None:
    verdict = judged(reward, Prompt("bare", 0, text="q"), "<answer>12</answer>")
    if isinstance(reward, SudokuReward) and reward.config.score == "solved":
        assert "puzzle" in verdict.detail
    assert (verdict.status, verdict.score) == (VerdictStatus.ERROR, None)
