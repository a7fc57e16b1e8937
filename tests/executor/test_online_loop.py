"""Whole runs of reinforcement learning on a toy, through the command line."""

from __future__ import annotations

import json
import math

import pytest
from tests.executor.toy_runs import TOYS, metrics_of, online_spec, write_spec

from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed


@pytest.fixture(scope="module", autouse=True)
def toys(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("site"), TOYS):
        yield


def test_a_run_leaves_metrics_samples_checkpoints_ledger_and_state(tmp_path):
    write_spec(tmp_path, online_spec())
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 0, result.stderr
    assert result.stdout == "finished at step 4 in runs/toy\n"
    run = tmp_path / "runs/toy"
    metrics = metrics_of(run)
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    for name in (
        "loss",
        "reward/mean",
        "reward/std",
        "reward/zero_variance_share",
        "rollout/unique_share",
        "rollout/response_length",
        "rollout/limit_share",
        "rollout/logp_gap_mean",
        "verdicts/wrong",
        "algorithm/clip_fraction",
        "algorithm/kl",
        "optim/grad_norm",
        "optim/lr",
        "spent/backward_tokens",
    ):
        assert math.isfinite(metrics[-1][name]), name
    assert metrics[-1]["rollout/logp_gap_max"] < 1e-9
    assert metrics[-1]["optim/updates"] == 2
    samples = [json.loads(line) for line in (run / "samples/step_4.jsonl").read_text().splitlines()]
    assert len(samples) == 8
    assert {"id", "prompt", "response", "score", "status", "advantage"} <= samples[0].keys()
    state = json.loads((run / "state.json").read_text())
    assert (state["status"], state["step"]) == ("finished", 4)
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step_2", "step_4"]
    assert {p.name for p in (run / "checkpoints/step_4").iterdir()} == {"complete.json", "model", "trainer"}
    ledger = json.loads((run / "ledger.json").read_text())
    assert ledger["generated_tokens"] > 0
    assert ledger["seconds"]["rollout"] > 0
    assert ledger["backward_tokens"] == metrics[-1]["spent/backward_tokens"]


def test_reward_rises_when_trained_for_it(tmp_path):
    write_spec(tmp_path, online_spec(run__steps=25, optim__lr=0.1, optim__batch_size=16, algorithm__kl_weight=0.0))
    assert run_dare_here("run", "spec.yaml", "--json", folder=tmp_path).code == 0
    rewards = [line["reward/mean"] for line in metrics_of(tmp_path / "runs/toy")]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.15


def test_progress_and_outcome_are_machine_readable(tmp_path):
    write_spec(tmp_path, online_spec(run__steps=1))
    result = run_dare_here("run", "spec.yaml", "--json", folder=tmp_path)
    assert json.loads(result.stdout)["status"] == "finished"
    assert "step 1/1" in result.stderr


def test_dry_run_reads_data_and_leaves_nothing(tmp_path):
    write_spec(tmp_path, online_spec())
    result = run_dare_here("run", "spec.yaml", "--dry-run", folder=tmp_path)
    assert result.code == 0
    assert "10 rows were read and fit" in result.stdout
    assert not (tmp_path / "runs").exists()


def test_a_second_run_into_the_folder_is_refused_with_the_way_out(tmp_path):
    write_spec(tmp_path, online_spec(run__steps=1))
    assert run_dare_here("run", "spec.yaml", folder=tmp_path).code == 0
    again = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert again.code == 2
    assert "dare resume runs/toy" in again.stderr


def test_a_model_that_cannot_be_built_leaves_the_name_free(tmp_path):
    write_spec(tmp_path, online_spec(engine={"kind": "local", "activation_checkpointing": True}))
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 2
    assert "activation_checkpointing" in result.stderr
    assert not (tmp_path / "runs/toy").exists()


def test_rows_that_do_not_fit_are_all_named_before_weights_are_read(tmp_path):
    write_spec(tmp_path, online_spec(rollout__new_tokens=10, rollout__steps_total=None, rollout__block_length=None))
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 2
    assert "row 'row-6': prompt and 10 new tokens make 13 tokens; the model takes 12" in result.stderr
    assert "4 of 10 rows do not fit the model" in result.stderr


def test_flat_rewards_stop_the_run_where_asked(tmp_path):
    write_spec(tmp_path, online_spec(run__steps=9, run__stop_when_flat=2, reward__function="dare_toys.rewards:flat"))
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 0
    assert "finished at step 2" in result.stdout
    assert "no group had differing rewards in the last 2 steps" in result.stdout
    assert metrics_of(tmp_path / "runs/toy")[-1]["reward/zero_variance_share"] == 1.0


def test_a_group_without_differing_rewards_gives_no_gradient(tmp_path):
    write_spec(
        tmp_path,
        online_spec(run__steps=1, reward__function="dare_toys.rewards:flat", algorithm__kl_weight=0.0),
    )
    assert run_dare_here("run", "spec.yaml", folder=tmp_path).code == 0
    assert metrics_of(tmp_path / "runs/toy")[0]["optim/grad_norm"] == 0.0


def test_collapse_of_a_metric_stops_the_run(tmp_path):
    write_spec(tmp_path, online_spec(run__steps=9, run__stop_below={"reward/mean": 2.0}))
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert "finished at step 1" in result.stdout
    assert "below 2 (run.stop_below)" in result.stdout


def test_a_reward_that_fails_stops_the_run_and_says_why(tmp_path):
    write_spec(tmp_path, online_spec(reward__function="dare_toys.rewards:broken"))
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 1
    assert "the reward failed on 8 of 8 responses" in result.stderr
    assert "no judge at home" in result.stderr
    assert json.loads((tmp_path / "runs/toy/state.json").read_text())["status"] == "failed"


def test_equal_responses_at_positive_temperature_are_a_warning(tmp_path, caplog):
    write_spec(tmp_path, online_spec(run__steps=1, rollout__temperature=1e-6))
    assert run_dare_here("run", "spec.yaml", folder=tmp_path).code == 0
    assert "all responses are equal in 2 of 2 groups although rollout.temperature is 1e-06" in caplog.text
    assert metrics_of(tmp_path / "runs/toy")[0]["rollout/unique_share"] == 0.25


def test_the_best_checkpoint_by_held_out_reward_is_kept(tmp_path):
    held_out = {
        "kind": "held-out",
        "every": 1,
        "at_start": True,
        "data": {"kind": "jsonl", "path": "held.jsonl", "prompt": "{question}"},
    }
    write_spec(
        tmp_path,
        online_spec(run__keep_best="eval/reward", run__keep_checkpoints=1, run__steps=5, eval=[held_out]),
    )
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 0, result.stderr
    run = tmp_path / "runs/toy"
    metrics = metrics_of(run)
    assert metrics[0]["step"] == 0
    best = max(metrics[1:], key=lambda line: line["eval/reward"])
    state = json.loads((run / "state.json").read_text())["best"]
    assert (state["step"], state["value"]) == (best["step"], best["eval/reward"])
    assert {p.name for p in (run / "checkpoints").iterdir()} == {f"step_{best['step']}", "step_5"}
    folder = run / "eval/step_5-eval"
    protocol = json.loads((folder / "protocol.json").read_text())
    assert protocol["decoding"]["temperature"] == 0.0
    assert protocol["decoding"]["block_length"] == 3
    assert protocol["items"] == 3
    assert json.loads((folder / "result.json").read_text())["reward"] == metrics[-1]["eval/reward"]
    assert len((folder / "items.jsonl").read_text().splitlines()) == 3


def test_held_out_rows_that_are_trained_on_are_refused(tmp_path):
    held_out = {"kind": "held-out", "data": {"kind": "jsonl", "path": "train.jsonl", "prompt": "{question}"}}
    write_spec(tmp_path, online_spec(eval=[held_out]))
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 2
    assert "10 of 10 prompts are trained on as well: row-0, row-1" in result.stderr


@pytest.mark.parametrize(
    "algorithm",
    [
        {"kind": "coupled-grpo", "group_size": 4},
        {"kind": "cj-grpo", "group_size": 4, "inner_updates": 2},
    ],
)
@pytest.mark.parametrize("model", ["toy-masked", "toy-block"])
def test_algorithms_run_in_the_same_loop_on_either_family(tmp_path, algorithm, model):
    spec = online_spec(algorithm=algorithm, run__steps=2, model__kind=model)
    if model == "toy-block":
        spec["model"]["config"]["block_length"] = 3
    write_spec(tmp_path, spec)
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 0, result.stderr
    assert metrics_of(tmp_path / "runs/toy")[-1]["rollout/logp_gap_max"] < 1e-9
