"""Checks across sections: what cannot work is said before anything heavy is imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.control.spec_plugins import SPEC, Specs

OFFLINE = SPEC.replace("group-pg", "imitate").replace("reward: match\n", "") + "optim: {batch_size: 4}\n"


def test_missing_capability_names_both_sides_and_alternatives(specs: Specs):
    lines = specs.lines(SPEC.replace("group-pg", "replay") + "rollout: quick\noptim: {batch_size: 6}\n")
    assert lines == [
        "spec.yaml:7: rollout.kind: algorithm 'replay' needs 'commit-step' (the denoising forward that committed each "
        "token; replay is exact), which rollout backend 'quick' does not provide; rollout backends installed that do: "
        "heavy, native"
    ]


def test_likelihood_that_does_not_suit_algorithm_or_model_is_refused(specs: Specs):
    lines = specs.lines(SPEC.replace("model: {", "model: {kind: toy-block, ") + "likelihood: elbo-x\n")
    assert any("algorithm 'group-pg' needs 'token-estimate'" in line for line in lines)
    assert any(
        "likelihood estimator 'elbo-x' needs 'masked'" in line and "models installed that do: toy" in line
        for line in lines
    )
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("algorithm", "word", "remedy"),
    [("imitate", "demonstrations", "data.completion"), ("prefer", "pairs", "data.chosen")],
)
def test_rows_that_do_not_become_what_the_algorithm_learns_from(specs: Specs, algorithm: str, word: str, remedy: str):
    (line,) = specs.lines(OFFLINE.replace("imitate", algorithm))
    assert line.startswith(f"spec.yaml:4: data: algorithm '{algorithm}' needs '{word}'")
    assert remedy in line


def test_batch_must_hold_whole_groups(specs: Specs):
    (line,) = specs.lines(SPEC + "optim:\n  batch_size: 8\n")
    assert line == (
        "spec.yaml:8: optim.batch_size: batch_size 8 is not divisible by algorithm.group_size 6: a batch holds whole "
        "groups; take 6 or 12"
    )


def test_group_of_one_is_refused(specs: Specs):
    (line,) = specs.lines(SPEC.replace("group-pg", "{kind: group-pg, group_size: 1}"))
    assert "algorithm.group_size: must be at least 2, not 1" in line


def test_temperature_zero_with_groups_is_refused(specs: Specs):
    (line,) = specs.lines(SPEC + "rollout: {temperature: 0}\n")
    assert line.startswith("spec.yaml:7: rollout.temperature: temperature 0 makes all 6 responses to a prompt equal")


def test_odd_batches_of_pairs_are_refused(specs: Specs):
    spec = OFFLINE.replace("imitate", "prefer").replace('reference: "{a}"', 'chosen: "{a}", rejected: b')
    (line,) = specs.lines(spec.replace("batch_size: 4", "batch_size: 3"))
    assert "batch_size 3 is odd" in line


def test_lengths_beyond_the_models_positions_are_refused(specs: Specs):
    Path("toy/config.json").write_text(json.dumps({"model_type": "toy", "positions": 100}))
    assert specs.plan().facts is not None
    spec = SPEC.replace('prompt: "{q}"', 'prompt: "{q}", max_prompt_tokens: 40')
    (line,) = specs.lines(spec)
    assert line.startswith("spec.yaml:1: rollout.new_tokens")
    assert "data.max_prompt_tokens 40 + new_tokens 64 exceeds the model's 100 positions" in line
    (line,) = specs.lines(OFFLINE.replace('reference: "{a}"', 'completion: "{a}", max_tokens: 101'))
    assert "spec.yaml:4: data.max_tokens: max_tokens 101 exceeds the model's 100 positions" in line


def test_facts_that_contradict_the_family_are_a_problem(specs: Specs):
    Path("toy/config.json").write_text('{"model_type": "toy"}')
    (line,) = specs.lines(SPEC)
    assert line == "spec.yaml:3: model.path: not a config of 'toy': config has no 'positions'"


def test_dropout_in_a_two_pass_update_is_refused(specs: Specs):
    spec = SPEC + "engine: {update: two-pass}\npeft: {dropout: 0.1}\n"
    (line,) = specs.lines(spec)
    assert line.startswith("spec.yaml:8: peft.dropout: dropout 0.1 and 'engine.update: two-pass' exclude each other")
    specs.plan(spec.replace("two-pass", "direct"))


def test_section_that_nothing_uses_is_refused(specs: Specs):
    spec = OFFLINE.replace('reference: "{a}"', 'completion: "{a}"')
    specs.plan(spec)
    lines = specs.lines(spec + "reward: match\nrollout: {new_tokens: 4}\n")
    assert [line.split(": ")[1] for line in lines] == ["reward", "rollout"]
    assert "algorithm 'imitate' learns without rollouts and 'eval' is empty" in lines[0]
    specs.plan(spec + "reward: match\nrollout: {new_tokens: 4}\neval: quiz\n")


def test_evaluation_that_generates_needs_a_rollout_section(specs: Specs):
    (line,) = specs.lines(OFFLINE.replace('reference: "{a}"', 'completion: "{a}"') + "eval: needy\n")
    assert "evaluator 'needy' needs 'sampling'" in line
    assert "there is no section 'rollout'; add 'rollout'" in line


def test_missing_python_package_names_what_to_install(specs: Specs):
    lines = specs.lines(SPEC + "rollout: heavy\n")
    assert len(lines) == 1
    assert "rollout backend 'heavy' needs the Python package 'no_such_package_x', which is not installed" in lines[0]


def test_missing_files_are_found_before_anything_is_loaded(specs: Specs):
    spec = SPEC.replace("{path: toy}", "{kind: toy, path: gone, tokenizer: lost}").replace("rows.jsonl", "gone.jsonl")
    lines = specs.lines(spec + "peft: {adapter: away}\neval: {kind: quiz, data: {path: off.jsonl, prompt: x}}\n")
    for path, name in (
        ("model.path", "gone"),
        ("model.tokenizer", "lost"),
        ("data.path", "gone.jsonl"),
        ("peft.adapter", "away"),
        ("eval.data.path", "off.jsonl"),
    ):
        assert any(f"{path}: no such" in line and str(Path(name).absolute()) in line for line in lines), path
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("removed", "says"),
    [
        ("config.json", "toy has no config.json"),
        ("model.safetensors", "toy has no weights: no *.safetensors file"),
        ("tokenizer.json", "toy has none of tokenizer.json"),
    ],
)
def test_incomplete_model_folder_is_named(specs: Specs, removed: str, says: str):
    (Path("toy") / removed).unlink()
    (line,) = specs.lines(SPEC.replace("{path: toy}", "{kind: toy, path: toy}"))
    assert f"spec.yaml:3: model.path: {says}" in line


def test_model_that_no_family_recognises_lists_the_families(specs: Specs):
    Path("toy/config.json").write_text('{"model_type": "other"}')
    (line,) = specs.lines(SPEC)
    assert "model.path: no installed family recognises config.json (model_type 'other')" in line
    assert "installed: toy, toy-block" in line


def test_unknown_ending_of_data_needs_a_kind(specs: Specs):
    (line,) = specs.lines(SPEC.replace("rows.jsonl", "rows.csv"))
    assert "data.kind: missing key; the ending of 'rows.csv' does not tell it; installed: datasets, jsonl" in line


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("{path: empty, prompt: x}", "data.path: not a folder written by save_to_disk"),
        ("{path: saved, prompt: x}", "data.path: no split was chosen; 'split' may be train"),
        ("{path: empty, kind: jsonl, prompt: x}", "data.path: the folder holds no file ending in .jsonl or .jsonl.gz"),
        ("{path: 'part-*.jsonl', prompt: x}", "data.path: no such file or folder"),
    ],
)
def test_data_without_what_its_reader_needs_is_refused(specs: Specs, data: str, says: str):
    Path("empty").mkdir()
    Path("saved/train").mkdir(parents=True)
    Path("saved/dataset_dict.json").write_text("{}")
    Path("saved/train/state.json").write_text("{}")
    (line,) = specs.lines(SPEC.replace('{path: rows.jsonl, prompt: "{q}", reference: "{a}"}', data))
    assert line.startswith(f"spec.yaml:4: {says}")


def test_metrics_that_nothing_writes_cannot_be_watched(specs: Specs):
    watching = SPEC.replace("run: {", "run: {keep_best: eval/reward, stop_below: {heldout/reward: 0.1}, ", 1)
    lines = specs.lines(watching)
    assert ["eval/reward" in lines[0], "heldout/reward" in lines[1]] == [True, True]
    assert len(specs.lines(watching + "eval: quiz\n")) == 1


def test_evaluations_need_names_of_their_own(specs: Specs):
    (line,) = specs.lines(SPEC + "eval: [quiz, quiz]\n")
    assert "eval.1.name: name 'eval' is taken by eval.0" in line


def test_problems_that_plugins_see_get_their_place(specs: Specs):
    assert specs.lines(SPEC.replace("name: t", "name: forbidden")) == ["spec.yaml:2: run.name: this name is taken"]


def test_cross_checks_run_beside_wrong_keys_of_other_sections(specs: Specs):
    lines = specs.lines(SPEC + "optim: {batch_size: 8}\nrun2: 1\npeft: {rr: 1}\n")
    assert [line.split(": ")[1] for line in lines] == ["optim.batch_size", "run2", "peft.rr"]


def test_fresh_model_needs_no_folder(specs: Specs):
    spec = SPEC.replace("{path: toy}", "{kind: toy, config: {positions: 77}, init: random, tokenizer: toy}")
    plan = specs.plan(spec)
    assert plan.facts is not None
    assert plan.facts.max_positions == 77
