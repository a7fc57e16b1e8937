"""OpenCompass from outside: what is told before a model is loaded, what is refused of what it leaves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.executor.test_eval_tasks import ScriptedBackend

from dare_core.api import DareError, UserError
from dare_core.interfaces import EvaluationContext
from dare_core.testing.command import run_dare_here
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import DecodingSettings
from dare_eval_opencompass import benchmarks, environment
from dare_eval_opencompass.config import OpenCompassSection
from dare_eval_opencompass.evaluator import OpenCompassEvaluator
from dare_eval_opencompass.results import measures

TWELVE = {
    *("mmlu", "mmlu-pro", "hellaswag", "arc-c", "gsm8k", "math", "gpqa", "aime2024", "aime2025", "olympiadbench"),
    *("humaneval", "mbpp"),
}
#: stands in for OpenCompass: asks two questions of each of two datasets, and says which answers are "a"
STAND_IN = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
request = json.loads((folder / "request.json").read_text())
names = ["one", "two"]
said = {"inferencer": "GenInferencer", "version": "abc123", "evaluator": "E", "examples": 0, "error": None}
if request["phase"] == "ask":
    rows = [{"dataset": n, "row": r, "prompt": [["user", "ab"], ["assistant", "c"]], "stop": ["f"]}
            for n in names for r in range(2)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + chr(10) for row in rows))
else:
    results = folder / "answer" / "results" / "dare"
    results.mkdir(parents=True, exist_ok=True)
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    for n in names:
        hits = [row["text"] == "a" for row in answers if row["dataset"] == n]
        if n not in LOST:
            details = [{"correct": hit} for hit in hits]
            (results / (n + ".json")).write_text(json.dumps({"accuracy": 50 * sum(hits), "details": details}))
outcome = {"opencompass": "0.5.4", "datasets": [{"dataset": n, **said} for n in names], "error": ERROR}
(folder / "outcome.json").write_text(json.dumps(outcome))
sys.exit(CODE)
"""


def stand_in(folder: Path, *, lost=(), error=None, code=0, text: str | None = None) -> str:
    """An environment whose Python runs the stand-in instead of the driver."""
    body = STAND_IN if text is None else text
    for name, value in (("LOST", list(lost)), ("ERROR", error), ("CODE", code)):
        body = body.replace(name, repr(value))
    (folder / "stand_in.py").write_text(body)
    package = folder / "lib" / "python3" / "site-packages" / "opencompass"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {folder / "stand_in.py"} "$2"\n')
    python.chmod(0o755)
    return str(folder)


def evaluator(where: str, **options) -> OpenCompassEvaluator:
    return OpenCompassEvaluator(OpenCompassSection(task="family/module", environment=where, **options))


def context() -> EvaluationContext:
    replies = {"one/0": ["afc"], "one/1": ["b"], "two/0": ["a"], "two/1": ["a"]}
    decoding = DecodingSettings(new_tokens=4, block_length=4, steps_per_block=4)
    return EvaluationContext(backend=ScriptedBackend(replies), decoding=decoding, reward=None, seed=0, step=0)


def prepared(where: str, **options) -> OpenCompassEvaluator:
    built = evaluator(where, **options)
    built.prepare((), ToyMasked(8, 16).text, None)
    return built


def test_each_question_is_answered_once_and_scored_by_opencompass(tmp_path):
    built = prepared(stand_in(tmp_path))
    assert built.keys() == ["one/0", "one/1", "two/0", "two/1"]
    items = list(built.items(context(), built.keys()))
    assert [item["response"] for item in items] == ["a", "b", "a", "a"]  # cut at the stop string
    found = built.measure(items)
    assert {name: found[name].value for name in ("accuracy", "accuracy/one", "accuracy/two")} == {
        "accuracy": 0.75,
        "accuracy/one": 0.5,
        "accuracy/two": 1.0,
    }
    assert next(iter(found)) == "accuracy"
    built.close()


def test_items_do_not_depend_on_which_are_asked_for(tmp_path):
    built = prepared(stand_in(tmp_path))
    whole = list(built.items(context(), built.keys()))
    assert list(built.items(context(), ["one/1", "two/1"])) == [whole[1], whole[3]]
    built.close()


def test_stored_items_are_scored_without_a_model(tmp_path):
    where = stand_in(tmp_path)
    built = prepared(where)
    items = list(built.items(context(), built.keys()))
    built.close()
    again = evaluator(where)
    assert again.measure(json.loads(json.dumps(items)))["accuracy"].value == 0.75
    again.close()


def test_a_missing_result_is_a_failure_whatever_the_exit_code(tmp_path):
    built = prepared(stand_in(tmp_path, lost=["two"]))
    with pytest.raises(DareError, match="left no result of 'two'"):
        built.measure(list(built.items(context(), built.keys())))
    built.close()


def test_an_exit_code_alone_is_no_failure(tmp_path):
    built = prepared(stand_in(tmp_path, code=3))
    assert built.measure(list(built.items(context(), built.keys())))["accuracy"].value == 0.75
    built.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"error": "Traceback\nLookupError: no such configuration"}, "no such configuration"),
        ({"text": "print('gone'); raise SystemExit(0)"}, "without an outcome(.|\n)*gone"),
        ({"text": "import time\ntime.sleep(60)"}, "not done within 1 s"),
    ],
)
def test_a_call_that_failed_says_how(tmp_path, options, said):
    with pytest.raises(DareError, match=said):
        prepared(stand_in(tmp_path, **options), time_limit=1.0 if "sleep" in str(options) else 60.0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"error": "boom"}', "is an error: .*boom"),
        ('{"score": 3.0}', "no share 'accuracy'; it has score"),
        ('{"accuracy": 120}', "no share 'accuracy'"),
        ('{"accuracy": "-"}', "no share 'accuracy'"),
    ],
)
def test_results_that_hold_no_score_are_failures(tmp_path, content, said):
    (tmp_path / "one.json").write_text(content)
    with pytest.raises(DareError, match=said):
        measures(["one"], tmp_path, [{"key": "one/0", "tokens": 1, "finish": "eos"}], "accuracy")


def test_an_interval_stands_where_each_row_is_known(tmp_path):
    rows = [{"predictions": {"correct": [hit]}, "example_abbr": str(hit)} for hit in (True, False)]
    items = [{"key": f"one/{n}", "tokens": 1, "finish": "eos"} for n in range(2)]
    (tmp_path / "one.json").write_text(json.dumps({"accuracy": 50.0, "details": rows}))
    found = measures(["one"], tmp_path, items, "accuracy")["accuracy"]
    assert (found.value, found.count, found.method) == (0.5, 2, "wilson")
    (tmp_path / "one.json").write_text(
        json.dumps({"accuracy (2 runs average)": 50.0, "details": [{"predictions": {}}]})
    )
    found = measures(["one"], tmp_path, items, "accuracy")["accuracy"]
    assert (found.value, found.low) == (0.5, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "gsm9k"}, "did you mean gsm8k"),
        ({"task": "humaneval"}, "fences nothing in"),
        ({"task": "humaneval", "allow_code_execution": True, "limit": 3}, "all rows of 'humaneval' or none"),
        ({"task": "aime2024", "limit": 3}, "cuts rows behind the repetitions"),
        ({"task": "aime2024", "temperature": 0.0}, "8 equal responses"),
        ({"task": "gsm8k", "environment": "nowhere"}, "no OpenCompass environment lies at .*nowhere"),
    ],
)
def test_wrong_options_are_told_at_once(tmp_path, options, said):
    with pytest.raises(UserError, match=said):
        OpenCompassEvaluator(OpenCompassSection(**{"environment": stand_in(tmp_path), **options}))


@pytest.mark.parametrize(
    ("task", "folder", "said"),
    [
        ("gsm8k", None, "no data folder is given"),
        ("gsm8k", "empty", "lacks .*data/gsm8k/train.jsonl"),
        ("math", "empty", "lacks .*data/math/math.json"),
        ("multiple-choice", "empty", "looked for .*mcq_tiny.jsonl"),
    ],
)
def test_missing_data_say_where_they_were_looked_for(tmp_path, task, folder, said):
    (tmp_path / "empty").mkdir()
    where = stand_in(tmp_path)
    data = None if folder is None else str(tmp_path / folder)
    built = OpenCompassEvaluator(OpenCompassSection(task=task, environment=where, data_folder=data))
    with pytest.raises(UserError, match=said):
        built.prepare((), ToyMasked(8, 16).text, None)
    built.close()


def test_the_setup_command_says_what_it_would_do(tmp_path):
    shown = run_dare_here(
        "eval", "setup-opencompass", "--environment", "oc", "--dry-run", "torch==2.13.0", folder=tmp_path
    )
    assert shown.code == 0, shown.stderr
    assert "opencompass==0.5.4" in shown.stdout
    assert "torch==2.13.0" in shown.stdout
    assert not (tmp_path / "oc").exists()


@pytest.mark.slow
def test_the_twelve_benchmarks_and_variants_build_with_the_published_shots(tmp_path):
    try:
        python = environment.interpreter(None)
    except UserError as error:
        pytest.skip(f"{error.problems[0].message}: make opencompass")
    known = {name: one for name, one in benchmarks.benchmarks().items() if one.config is not None}
    assert set(known) >= TWELVE
    listed = [
        {"name": name, "config": one.config, "repeats": one.repeats, "boxed": one.boxed} for name, one in known.items()
    ]
    request = {"phase": "build", "chat": True, "answer_turn": "prefill", "benchmarks": listed}
    found = environment.call(python, tmp_path, request, tmp_path, 600)["datasets"]
    assert {one["benchmark"] for one in found} == set(known)
    for one in found:
        benchmark = known[one["benchmark"]]
        assert (one["examples"], one["repeats"]) == (benchmark.shots, benchmark.repeats)
        assert one["inferencer"] == "GenInferencer"
