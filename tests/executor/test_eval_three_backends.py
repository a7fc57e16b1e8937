"""A scripted model gets the same, exactly known scores from our tasks, lm-evaluation-harness and OpenCompass."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.executor.test_eval_tasks import ScriptedBackend

from dare_core.api import UserError
from dare_core.interfaces import EvaluationContext, ItemEvaluator
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import DecodingSettings
from dare_eval.config import HarnessSection, TaskSection
from dare_eval.task_evaluator import TaskEvaluator
from dare_eval.tasks.files import read_rows
from dare_eval_opencompass import environment
from dare_eval_opencompass.config import OpenCompassSection
from dare_eval_opencompass.evaluator import OpenCompassEvaluator

DATA = Path(__file__).parents[2] / "examples" / "data"
COUNT, RIGHT = 8, 5


def rows(name: str) -> list[Any]:
    file = next(path for path in (DATA / name, DATA / f"{name}.gz") if path.exists())
    return [row for _, row in read_rows(file)][:COUNT]


def numbers() -> list[str]:
    """Replies to GSM8K, the first five right; in a form that each backend's rule reads."""
    wanted = [row["answer"] for row in rows("gsm8k_test.jsonl")]
    return [f"The answer is {answer}\n#### {answer}" if n < RIGHT else "no idea" for n, answer in enumerate(wanted)]


def letters() -> list[str]:
    """Replies to the multiple-choice set, the first five right and the others wrong."""
    wanted = [row["answer"] for row in rows("mcq_tiny.jsonl")]
    wrong = ["B" if answer == "A" else "A" for answer in wanted]
    return [f"The answer is {wanted[n] if n < RIGHT else wrong[n]}" for n in range(COUNT)]


def native(task: str) -> ItemEvaluator:
    return TaskEvaluator(TaskSection(task=task, data_folder=str(DATA), limit=COUNT))


def harness(task: str) -> ItemEvaluator:
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm_eval is not installed: pip install 'dare-eval[lm-eval]'")
    from dare_eval.harness.evaluator import HarnessEvaluator

    return HarnessEvaluator(HarnessSection(task=task, data_folder=str(DATA), limit=COUNT))


def opencompass(task: str) -> ItemEvaluator:
    try:
        environment.interpreter(None)
    except UserError as error:
        pytest.skip(f"{error.problems[0].message}: make opencompass")
    return OpenCompassEvaluator(OpenCompassSection(task=task, data_folder=str(DATA), limit=COUNT))


def evaluated(evaluator: ItemEvaluator, replies: list[str]):
    decoding = DecodingSettings(new_tokens=8, block_length=8, steps_per_block=8)
    try:
        evaluator.prepare((), ToyMasked(8, 16).text, None)
        backend = ScriptedBackend({key: [text] for key, text in zip(ids(evaluator), replies, strict=True)})
        context = EvaluationContext(backend=backend, decoding=decoding, reward=None, seed=0, step=0)
        return evaluator.evaluate(context)
    finally:
        evaluator.close()


def ids(evaluator: ItemEvaluator) -> list[str]:
    """What the backend is asked by: the harness's documents have numbers, the others names."""
    keys = evaluator.keys()
    return [f"document {key}" if key.isdecimal() else key for key in keys]


@pytest.mark.parametrize(
    ("build", "gsm8k", "choices", "headline"),
    [
        (native, "gsm8k", "multiple-choice-generate", "accuracy"),
        (harness, "dare_gsm8k", "dare_mcq_generate", "exact_match"),
        (opencompass, "gsm8k", "multiple-choice", "accuracy"),
    ],
    ids=["native", "lm-eval", "opencompass"],
)
def test_a_scripted_model_gets_the_same_scores_from_every_backend(
    build: Callable[[str], ItemEvaluator], gsm8k: str, choices: str, headline: str
):
    for task, replies in ((gsm8k, numbers()), (choices, letters())):
        result = evaluated(build(task), replies)
        scores = {name: value for name, value in result.metrics.items() if name.split(",")[0] == headline}
        assert scores
        assert set(scores.values()) == {RIGHT / COUNT}, task
        assert len(result.items) == COUNT
