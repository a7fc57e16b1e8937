"""lm-evaluation-harness in process: a scripted model gets the same scores as from our own tasks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import yaml
from tests.executor.test_eval_tasks import ScriptedBackend

from dare_core.api import UserError
from dare_core.interfaces import EvaluationContext
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import DecodingSettings
from dare_eval.config import HarnessSection
from dare_eval.tasks.files import read_rows

if importlib.util.find_spec("lm_eval") is None:
    pytest.skip("lm_eval is not installed: pip install 'dare-eval[lm-eval]'", allow_module_level=True)

from dare_eval.harness.evaluator import HarnessEvaluator

DATA = Path(__file__).parents[2] / "examples" / "data"


def evaluator(task: str, **options) -> HarnessEvaluator:
    built = HarnessEvaluator(HarnessSection(task=task, data_folder=str(DATA), **options))
    built.prepare((), ToyMasked(8, 16).text, None)
    return built


def context(backend) -> EvaluationContext:
    decoding = DecodingSettings(new_tokens=8, block_length=8, steps_per_block=8)
    return EvaluationContext(backend=backend, decoding=decoding, reward=None, seed=0, step=0)


@pytest.fixture
def scripted() -> ScriptedBackend:
    rows = [row for _, row in read_rows(DATA / "gsm8k_test.jsonl.gz")][:8]
    answers = [f"It is {row['answer']}\n#### {row['answer']}\n\nQuestion: and 7?" for row in rows]
    return ScriptedBackend({f"document {i}": [answers[i] if i < 5 else "no idea"] for i in range(8)})


def test_a_scripted_model_gets_exactly_its_score(scripted):
    built = evaluator("dare_gsm8k", limit=8)
    result = built.evaluate(context(scripted))
    assert result.metrics["exact_match,flexible-extract"] == 5 / 8
    assert result.metrics["exact_match,strict-match"] == 5 / 8
    assert result.protocol["evaluator"] == "lm-eval"
    assert result.items[0]["responses"] == [["It is 18\n#### 18\n\n"]]


def test_items_do_not_depend_on_which_are_asked_for(scripted):
    built = evaluator("dare_gsm8k", limit=8)
    whole = list(built.items(context(scripted), built.keys()))
    assert [item["key"] for item in whole] == list(built.keys())
    assert list(built.items(context(scripted), ["2", "6"])) == [whole[2], whole[6]]


def test_likelihood_tasks_choose_by_our_estimates(tmp_path):
    letters = "abcdef"
    rows = [{"q": "ab", "choices": ["c", "d", "e"], "answer": 0}, {"q": "fe", "choices": ["a", "b", "c"], "answer": 1}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "toy_choice",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }
    (tmp_path / "toy_choice.yaml").write_text(yaml.safe_dump(task))
    built = evaluator("toy_choice", include=str(tmp_path))
    toy = ToyMasked(8, 16, 3)
    backend = ScriptedBackend({})
    backend.adapter = toy
    from dare_core.types import Address
    from dare_eval.likelihood import LikelihoodSettings, Target, likelihoods

    right = 0
    for number, row in enumerate(rows):
        targets = [
            Target(
                question=number,
                prompt=tuple(letters.index(c) for c in row["q"]),
                continuation=(letters.index(choice),),
            )
            for choice in row["choices"]
        ]
        sums = [one.logp for one in likelihoods(toy, targets, LikelihoodSettings(), Address(0, "x"), rows_per_batch=8)]
        right += sums.index(max(sums)) == row["answer"]
    assert built.evaluate(context(backend)).metrics["acc"] == right / 2


def test_an_unknown_task_is_told_with_what_is_known():
    with pytest.raises(UserError, match="dare_gsm8k"):
        evaluator("gsm8k_of_nobody")


def test_stored_responses_pass_the_filters_again_without_a_model(scripted):
    built = evaluator("dare_gsm8k", limit=8)
    items = json.loads(json.dumps(list(built.items(context(scripted), built.keys()))))
    again = HarnessEvaluator(HarnessSection(task="dare_gsm8k", data_folder=str(DATA), limit=8))
    assert again.judged_again(items) == items
    changed = [{**item, "responses": [["#### 70000"]]} for item in items]
    found = again.measure(again.judged_again(changed))
    assert found["exact_match,strict-match"].value == 1 / 8


def test_stored_likelihoods_are_compared_again_without_a_model():
    built = evaluator("dare_mcq", limit=4)
    choices = [[[-2.0, False]], [[-1.0, False]], [[-3.0, False]], [[-4.0, True]]]
    items = [{"key": str(n), "index": n, "prompt": "q", "responses": choices, "tokens": 0} for n in range(4)]
    found = built.measure(built.judged_again(items))
    assert found["acc"].value == sum(row["answer"] == "B" for row in rows_of("mcq_tiny.jsonl")[:4]) / 4


def rows_of(name: str) -> list:
    return [row for _, row in read_rows(DATA / name)]
