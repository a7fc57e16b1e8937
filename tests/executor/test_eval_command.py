"""``dare eval``: what is done is kept, shards add up, wrong input is told before a model is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from tests.executor.toy_runs import TOYS, online_spec, write_spec

from dare_core.loops import item_evaluation, placement
from dare_core.run.evaluations import EvaluationFolder
from dare_core.spec.sections import PeftSection
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_eval import task_evaluator
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import write_llada_checkpoint

GENERATE = {
    "task": "letters",
    "version": 1,
    "summary": "toy text",
    "data": {"file": "questions.jsonl", "origin": "made here", "fields": {"question": ["q"], "answer": ["a"]}},
    "prompt": "{question}",
    "reference": "{answer}",
    "scoring": {"rule": "text"},
    "new_tokens": 4,
}
CHOOSE = {
    "task": "endings",
    "version": 1,
    "summary": "toy choices",
    "data": {"file": "questions.jsonl", "fields": {"question": ["q"], "choices": ["c"], "answer": ["right"]}},
    "prompt": "{question} ",
    "reference": "{answer}",
    "choices": {"continuation": "{choice}"},
}
QUESTIONS = ["ab", "bc", "cd", "de", "ef", "fa", "abc", "bcd", "cde", "def"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with toys in published layout, two tasks and their data."""
    folder = tmp_path_factory.mktemp("eval")
    ToyMasked(48, 24, 1).save(folder / "model")
    ToyBlock(48, 24, 1, block_length=4).save(folder / "block")
    rows = [
        {"id": f"q{i}", "q": text, "a": "a", "c": ["a", "bcd", "ce"], "right": "ABC"[i % 3]}
        for i, text in enumerate(QUESTIONS)
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for task in (GENERATE, CHOOSE):
        (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump(task))
    with installed(tmp_path_factory.mktemp("site"), TOYS):
        yield folder


def run(place: Path, *arguments: str, task: str = "letters.yaml", model: str = "model"):
    return run_dare_here("eval", "--model", model, "--task", task, "--data", ".", *arguments, folder=place)


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("protocol.json", "items.jsonl", "result.json")}


def test_an_evaluation_leaves_protocol_items_and_result(place, tmp_path):
    done = run(place, "-o", str(tmp_path), "--json")
    assert done.code == 0, done.stderr
    found = EvaluationFolder(tmp_path / "letters")
    protocol, result = found.protocol(), found.result()
    assert (result["task"], result["metric"], result["n"]) == ("letters", "accuracy", len(QUESTIONS))
    assert result["protocol"] == protocol["hash"]
    assert protocol["decoding"]["new_tokens"] == 4
    assert protocol["decoding"]["temperature"] == 0
    assert protocol["task_version"] == 1
    assert len(protocol["weights"]["model"]) == 64
    items = found.items()
    assert [item["key"] for item in items] == [f"q{i}" for i in range(len(QUESTIONS))]
    assert {"text", "answer", "status", "score", "tokens"} <= items[0]["responses"][0].keys()


@pytest.mark.parametrize(
    ("task", "at"), [("letters.yaml", 0), ("letters.yaml", 5), ("letters.yaml", 9), ("endings.yaml", 5)]
)
def test_a_kill_costs_no_finished_item_and_changes_no_byte(place, tmp_path, monkeypatch, task, at):
    name = Path(task).stem
    run(place, "-o", str(tmp_path / "whole"), "--set", "rollout.rows_per_batch=2", task=task)
    produced: list[str] = []
    whole = task_evaluator.TaskEvaluator.items

    def counted(self, context, keys):
        for item in whole(self, context, keys):
            produced.append(item["key"])
            yield item

    monkeypatch.setattr(task_evaluator.TaskEvaluator, "items", counted)
    append = EvaluationFolder.append

    def killed(file, item):
        if item["key"] == f"q{at}":
            with file.open("a") as out:
                out.write(f'{{"key": "q{at}", "ind')  # cut in the middle of a line
            raise KeyboardInterrupt
        append(file, item)

    monkeypatch.setattr(EvaluationFolder, "append", staticmethod(killed))
    command = ("-o", str(tmp_path / "killed"), "--set", "rollout.rows_per_batch=2")
    assert run(place, *command, task=task).code == 130
    monkeypatch.setattr(EvaluationFolder, "append", staticmethod(append))
    produced.clear()
    assert run(place, *command, task=task).code == 0
    assert produced == [f"q{i}" for i in range(at, len(QUESTIONS))]
    assert files_of(tmp_path / "killed" / name) == files_of(tmp_path / "whole" / name)
    produced.clear()
    assert run(place, *command, task=task).code == 0
    assert not produced


@pytest.mark.parametrize("task", ["letters.yaml", "endings.yaml"])
def test_shards_add_up_to_one_process(place, tmp_path, task):
    name = Path(task).stem
    run(place, "-o", str(tmp_path / "one"), task=task)
    for shard in ("0/3", "2/3"):
        part = run(place, "-o", str(tmp_path / "three"), "--shard", shard, task=task)
        assert "others are not" in part.stdout
    assert not (tmp_path / "three" / name / "result.json").exists()
    last = run(place, "-o", str(tmp_path / "three"), "--shard", "1/3", task=task)
    assert last.code == 0, last.stderr
    assert files_of(tmp_path / "three" / name) == files_of(tmp_path / "one" / name)


def test_items_do_not_depend_on_the_batch(place, tmp_path):
    for rows in ("1", "7"):
        sets = ("--set", "rollout.temperature=0.9", "--samples", "2", "--set", f"rollout.rows_per_batch={rows}")
        assert run(place, "-o", str(tmp_path / rows), *sets).code == 0
    one, seven = (EvaluationFolder(tmp_path / rows / "letters").items() for rows in ("1", "7"))
    assert one == seven


def test_eval_decodes_as_generate_does(place, tmp_path):
    sets = ("--set", "rollout.temperature=1.0", "--set", "rollout.new_tokens=4", "--seed", "5")
    run(place, "-o", str(tmp_path), *sets)
    texts = [item["responses"][0]["text"] for item in EvaluationFolder(tmp_path / "letters").items()]
    made = run_dare_here("generate", "--model", "model", "--plain", *QUESTIONS, *sets, folder=place)
    assert [json.loads(line)["response"] for line in made.stdout.splitlines()] == texts


def test_another_protocol_does_not_go_on_in_the_same_folder(place, tmp_path):
    run(place, "-o", str(tmp_path))
    other = run(place, "-o", str(tmp_path), "--set", "rollout.block_length=2")
    assert other.code == 2
    assert "decoding.block_length: 4 there, 2 here" in other.stderr


def test_compare_names_every_differing_key_and_marks_the_row(place, tmp_path):
    run(place, "-o", str(tmp_path / "a"))
    run(place, "-o", str(tmp_path / "b"), "--set", "rollout.block_length=2", "--set", "rollout.steps_per_block=2")
    run(place, "-o", str(tmp_path / "c"))
    folders = [str(tmp_path / name) for name in "abc"]
    shown = run_dare_here("eval", "compare", *folders, folder=place)
    assert shown.code == 0, shown.stderr
    assert "! decoding.block_length: [1] 4, [2] 2" in shown.stdout
    assert "! decoding.steps_per_block: [1] 4, [2] 2" in shown.stdout
    found = json.loads(run_dare_here("eval", "compare", *folders, "--json", folder=place).stdout)
    columns = found["tasks"][0]["columns"]
    assert [column["unlike"] for column in columns] == [False, True, False]
    assert set(columns[1]["differences"]) == {"decoding.block_length", "decoding.steps_per_block"}


def test_another_model_alone_is_no_other_protocol(place, tmp_path):
    run(place, "-o", str(tmp_path / "a"))
    ToyMasked(48, 24, 2).save(place / "other")
    run(place, "-o", str(tmp_path / "b"), model="other")
    shown = run_dare_here("eval", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json", folder=place)
    column = json.loads(shown.stdout)["tasks"][0]["columns"][1]
    assert set(column["differences"]) == {"weights.model"}
    assert not column["unlike"]


def test_rescore_gives_the_stored_numbers_without_a_model(place, tmp_path):
    run(place, "-o", str(tmp_path / "first"))
    again = run_dare_here(
        "eval", "rescore", str(tmp_path / "first/letters"), "-o", str(tmp_path / "again"), "--json", folder=place
    )
    assert again.code == 0, again.stderr
    found = json.loads(again.stdout)
    assert found["before"] == found["after"]
    assert files_of(tmp_path / "again") == files_of(tmp_path / "first/letters")


def test_a_run_and_its_checkpoints_are_evaluated(place, tmp_path):
    spec = online_spec(run__steps=2, run__save_every=1, peft={"kind": "lora", "r": 2, "alpha": 4})
    spec["model"]["config"] = {"vocab_size": 48, "max_positions": 24}
    write_spec(tmp_path, spec)
    assert run_dare_here("run", "spec.yaml", folder=tmp_path).code == 0
    for name in ("letters.yaml", "questions.jsonl"):
        shutil.copy(place / name, tmp_path)
    last = run(tmp_path, model="runs/toy")
    assert last.code == 0, last.stderr
    assert (tmp_path / "runs/toy/eval/step_2-letters/result.json").is_file()
    first = run(tmp_path, model="runs/toy/checkpoints/step_1")
    assert first.code == 0, first.stderr
    protocols = [EvaluationFolder(tmp_path / f"runs/toy/eval/step_{n}-letters").protocol() for n in (1, 2)]
    assert protocols[0]["weights"] != protocols[1]["weights"]
    assert protocols[0]["decoding"]["temperature"] == 0  # the run's 1.0 is for exploring
    assert protocols[0]["decoding"]["new_tokens"] == 6


def test_tasks_are_evaluated_inside_runs(place, tmp_path):
    spec = online_spec(run__steps=2)
    spec["model"]["config"] = {"vocab_size": 48, "max_positions": 24}
    section = {"kind": "task", "task": "letters.yaml", "name": "letters", "data_folder": ".", "every": 1}
    spec["eval"] = [section]
    spec["run"]["keep_best"] = "letters/accuracy"
    write_spec(tmp_path, spec)
    for name in ("letters.yaml", "questions.jsonl"):
        shutil.copy(place / name, tmp_path)
    refused = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert "10 of 10 questions are trained on as well" in refused.stderr
    section["allow_overlap"] = True
    write_spec(tmp_path, spec)
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 0, result.stderr
    metrics = [json.loads(line) for line in (tmp_path / "runs/toy/metrics.jsonl").read_text().splitlines()]
    assert all("letters/accuracy" in line for line in metrics)
    assert (tmp_path / "runs/toy/eval/step_2-letters/items.jsonl").is_file()
    assert json.loads((tmp_path / "runs/toy/state.json").read_text())["best"]["metric"] == "letters/accuracy"


@pytest.mark.parametrize(
    ("arguments", "task", "said"),
    [
        (["--limit", "2"], "gsm9k", "did you mean gsm8k"),
        ([], "gsm8k", "looked for"),
        (["--adapter", "nowhere"], "letters.yaml", "no adapter in peft's format"),
        (["--set", "rollout.new_token=3"], "letters.yaml", "did you mean 'new_tokens'"),
        (["--set", "eval.limits=3"], "letters.yaml", "did you mean 'limit'"),
        (["--set", "rollout.new_tokens=23"], "letters.yaml", "the model takes 24"),
        (["--shard", "2/2"], "letters.yaml", "is no shard"),
        (["--samples", "2"], "letters.yaml", "equal responses"),
        ([], "humaneval", "allow_code_execution"),
        (["--model", "nowhere"], "letters.yaml", "no such folder"),
    ],
)
def test_wrong_input_is_told_before_the_model_is_loaded(place, tmp_path, monkeypatch, arguments, task, said):
    def loaded(*_):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(placement, "load_model", loaded)
    (place / "humaneval_test.jsonl").write_text(
        json.dumps({"id": "h", "prompt": "def f():\n", "tests": "def check(f): pass", "entry_point": "f"}) + "\n"
    )
    result = run(place, "-o", str(tmp_path), *arguments, task=task)
    assert result.code == 2, result.stdout + result.stderr
    assert said in result.stderr


def test_an_adapter_of_another_size_is_named_before_the_model_is_loaded(place, tmp_path, monkeypatch):
    small, large = (write_llada_checkpoint(tmp_path / name, d_model=size) for name, size in (("a", 32), ("b", 64)))
    trained = LladaAdapter.load(LladaSection(path=str(small)), device=torch.device("cpu"), dtype=torch.float32)
    trained.attach_peft(PeftSection(kind="lora", r=2, alpha=4))
    trained.save_adapter(tmp_path / "adapter")

    def loaded(*_):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(placement, "load_model", loaded)
    result = run(place, "--adapter", str(tmp_path / "adapter"), "-o", str(tmp_path / "out"), model=str(large))
    assert result.code == 2, result.stdout + result.stderr
    assert "lora_A.weight has shape (2, 32); expected (2, 64)" in result.stderr


def test_rows_without_answers_are_named(place, tmp_path):
    (tmp_path / "questions.jsonl").write_text('{"id": "x", "q": "ab"}\n{"id": "y", "q": "ab", "a": " "}\n')
    result = run(place, "--set", f"eval.data_file={tmp_path / 'questions.jsonl'}", "-o", str(tmp_path))
    assert result.code == 2
    assert "row 'x' has no 'answer'" in result.stderr
    assert "row 'y' has an empty answer" in result.stderr


def test_progress_says_how_long_it_still_takes():
    progress = item_evaluation.Progress(name="t", done=6, total=10, fresh=2, tokens=100, seconds=4.0)
    assert (progress.tokens_per_second, progress.seconds_left) == (25.0, 8.0)


def test_block_models_are_evaluated_by_likelihood(place, tmp_path):
    result = run(place, "-o", str(tmp_path), task="endings.yaml", model="block")
    assert result.code == 0, result.stderr
    item = EvaluationFolder(tmp_path / "endings").items()[0]
    assert all(choice["logp"] < 0 and choice["stderr"] >= 0 for choice in item["choices"])
