"""Whole runs on demonstrations, through the command line."""

from __future__ import annotations

import math
import re

import pytest
from tests.executor.toy_runs import TOYS, metrics_of, offline_spec, write_spec

from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed


@pytest.fixture(scope="module", autouse=True)
def toys(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("site"), TOYS):
        yield


@pytest.mark.parametrize("model", ["toy-masked", "toy-block"])
def test_demonstrations_are_learned(tmp_path, model):
    spec = offline_spec(run__steps=30, model__kind=model)
    if model == "toy-block":
        spec["model"]["config"]["block_length"] = 3
    write_spec(tmp_path, spec)
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 0, result.stderr
    metrics = metrics_of(tmp_path / "runs/toy")
    losses = [line["loss"] for line in metrics]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert metrics[-1]["data/epoch"] == 30 * 4 / 10
    assert math.isfinite(metrics[-1]["optim/grad_norm"])


def test_supervised_padding_makes_answers_as_long_as_the_longest_row(tmp_path):
    counts = []
    for name, supervised in (("with", True), ("without", False)):
        spec = offline_spec(run__name=name, run__steps=1, algorithm__supervise_padding=supervised)
        write_spec(tmp_path, spec)
        assert run_dare_here("run", "spec.yaml", folder=tmp_path).code == 0
        counts.append(metrics_of(tmp_path / f"runs/{name}")[0]["data/response_tokens"])
    assert counts[0] > counts[1]


def test_held_out_reward_is_evaluated_with_the_rollout_section_of_an_offline_run(tmp_path):
    held_out = {
        "kind": "held-out",
        "every": 2,
        "name": "held",
        "data": {"kind": "jsonl", "path": "held.jsonl", "prompt": "{question}", "reference": "{answer}"},
    }
    spec = offline_spec(
        run__steps=3, eval=[held_out], rollout={"new_tokens": 4}, reward={"kind": "match", "compare": "text"}
    )
    write_spec(tmp_path, spec)
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 0, result.stderr
    evaluated = [line["step"] for line in metrics_of(tmp_path / "runs/toy") if "held/correct_rate" in line]
    assert evaluated == [2, 3]


def test_answers_that_do_not_fit_are_named_before_training(tmp_path):
    write_spec(tmp_path, offline_spec(data__completion="{answer}{answer}{answer}{answer}"))
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 2
    assert "prompt and answer make 15 tokens; the model takes 12" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_rows_batch_and_reward_are_checked_together(tmp_path):
    write_spec(tmp_path, offline_spec(optim__batch_size=11, data__completion="{answer}{answer}{answer}{answer}"))
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert "a batch of 11" in result.stderr
    assert "rows do not fit the model" in result.stderr


def test_every_row_that_cannot_be_written_in_tokens_is_named(tmp_path):
    write_spec(tmp_path, offline_spec(data__completion="{answer}é"))
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 2
    assert len(re.findall("holds 'é'", result.stderr)) == 10


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    write_spec(tmp_path, offline_spec(optim__batch_size=11))
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 2
    assert "optim.batch_size: a batch of 11 different rows cannot be made from 10" in result.stderr
