"""Batches refilled where groups teach nothing: bounded, addressed, counted, resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.executor.toy_runs import TOYS, metrics_of, online_spec, weights_of, write_spec

from dare_core.data.batches import BatchOrder, refill_order
from dare_core.diffusion.joining import joined, rows_of
from dare_core.interfaces import RolloutRequest
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import Address, Prompt, Rollout, TreeShape


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("site"), TOYS) as folder:
        yield folder


def refilled_spec(rounds=8, steps=4, **changes):
    algorithm = {"kind": "d1", "group_size": 4, "inner_updates": 1, "drop_flat_groups": True, "refill_rounds": rounds}
    reward = {"kind": "python", "function": "dare_toys.rewards:flat_for_some"}
    # A rate at which responses stay different.
    return online_spec(
        run__steps=steps, run__save_every=2, algorithm=algorithm, reward=reward, optim__lr=1e-3, **changes
    )


def run_of(folder: Path, spec) -> Path:
    write_spec(folder, spec)
    result = run_dare_here("run", "spec.yaml", folder=folder)
    assert result.code == 0, result.stderr
    return folder / "runs/toy"


def samples_of(run: Path, step: int) -> list[dict]:
    text = (run / f"samples/step_{step}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_further_prompts_replace_groups_that_teach_nothing(tmp_path, site):
    run = run_of(tmp_path, refilled_spec())
    metrics = metrics_of(run)
    assert any(step["rollout/rounds"] > 1 for step in metrics)
    assert any(sum(s["advantage"] is not None for s in samples_of(run, step)) == 8 for step in range(1, 5))
    for number, step in enumerate(metrics, start=1):
        samples = samples_of(run, number)
        trained = [s for s in samples if s["advantage"] is not None]
        # Of ten prompts some teach: the batch is full, or every prompt was tried.
        assert len(trained) == 8 or len({s["id"] for s in samples}) == 10
        assert all(s["prompt"][0] not in "abc" for s in trained)
        left_out = {s["id"] for s in samples} - {s["id"] for s in trained}
        assert step["rollout/left_out_groups"] == len(left_out)
        # The reward's mean is that of all that was sampled, not of what was picked.
        assert step["reward/mean"] == pytest.approx(sum(s["score"] for s in samples) / len(samples), rel=1e-5)


def test_rounds_are_bounded_and_every_response_is_in_the_ledger(tmp_path, site):
    flat = {"kind": "python", "function": "dare_toys.rewards:flat"}
    spent = {}
    for rounds in (0, 2):
        spec = refilled_spec(rounds, steps=1)
        spec["reward"] = flat
        run = run_of(tmp_path / str(rounds), spec)
        spent[rounds] = json.loads((run / "ledger.json").read_text())
        assert len(samples_of(run, 1)) == 8 * (1 + rounds)
        assert metrics_of(run)[0].get("rollout/rounds", 1.0) == 1.0 + rounds
    assert spent[2]["generated_tokens"] > 2 * spent[0]["generated_tokens"]
    assert spent[2]["backward_tokens"] == spent[0]["backward_tokens"]


def test_a_refilled_run_resumes_bit_for_bit(tmp_path, site):
    whole = run_of(tmp_path / "whole", refilled_spec())
    write_spec(tmp_path / "parts", refilled_spec())
    assert run_dare_here("run", "spec.yaml", "--to-step", "2", folder=tmp_path / "parts").code == 0
    assert run_dare_here("resume", "runs/toy", folder=tmp_path / "parts").code == 0
    parts = tmp_path / "parts/runs/toy"
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    first, second = weights_of(whole, 4), weights_of(parts, 4)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_refilling_without_a_filter_is_refused(tmp_path, site):
    spec = refilled_spec()
    spec["algorithm"]["drop_flat_groups"] = False
    result = run_dare_here("validate", str(write_spec(tmp_path, spec)), folder=tmp_path)
    assert result.code == 2
    assert "'refill_rounds' replaces groups that 'drop_flat_groups' or 'mean_reward_range' leave out" in result.stderr


def test_the_order_of_further_prompts_follows_from_seed_and_step_and_changes_no_batch():
    orders = {(seed, step): refill_order(9, seed, step) for seed in (0, 1) for step in (0, 1)}
    assert all(sorted(order) == list(range(9)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 4
    assert refill_order(9, 0, 1) == orders[0, 1]
    assert BatchOrder(9, 9, 0).batch(0) != orders[0, 0]


def assert_equal(found: Rollout, wanted: Rollout) -> None:
    width = wanted.tokens.shape[1]
    for name in ("tokens", "prompt", "response", "completion", "logp"):
        assert torch.equal(getattr(found, name)[:, :width], getattr(wanted, name)), name
    for name in ("sample_id", "group", "forwards"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    assert (found.text, found.finish, found.example_id) == (wanted.text, wanted.finish, wanted.example_id)
    mine, other = found.trace, wanted.trace
    assert torch.equal(mine.commit_step[:, :width], other.commit_step)
    for name in ("inputs", "predicted", "confidence"):
        assert torch.equal(getattr(mine.snapshots, name)[:, :width], getattr(other.snapshots, name)), name
    for name in ("row", "step", "parent"):
        assert torch.equal(getattr(mine.snapshots, name), getattr(other.snapshots, name)), name


def tree_rollout(texts: list[str], first: int) -> Rollout:
    toy = ToyMasked(8, 12, seed=4)
    section = NativeSection(new_tokens=4, block_length=2, temperature=1.0)
    request = RolloutRequest(
        prompts=[Prompt(id=text, index=first + i, text=text) for i, text in enumerate(texts)],
        samples=4,
        settings=section.settings(),
        address=Address(3, "rollout", 0),
        tree=TreeShape(2, 2, 2),
    )
    return NativeBackend(section, toy).generate(request)


def test_joined_rollouts_come_apart_as_they_were():
    first, second = tree_rollout(["ab"], 0), tree_rollout(["cde", "f"], 1)
    both = joined([first, second], pad_id=6)
    kept = torch.arange(len(both)) < len(first)
    assert_equal(rows_of(both, kept), first)
    assert_equal(rows_of(both, ~kept), second)
