"""Held-out NELBO: an unbiased number on masks that stay the same, in runs without any rollout section."""

from __future__ import annotations

import json

import pytest
import torch
from tests.executor.toy_runs import TOYS, metrics_of, offline_spec, write_spec
from tests.made_inputs import rows_of

from dare_core.loops.nelbo import nelbo_views
from dare_core.testing.command import run_dare_here
from dare_core.testing.enumeration import exact_elbo
from dare_core.testing.fake_distributions import installed
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Address

HELD = {"kind": "jsonl", "path": "held.jsonl", "prompt": "{question}", "completion": "{answer}"}


@pytest.fixture(scope="module", autouse=True)
def toys(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("site"), TOYS):
        yield


def evaluated(**changes):
    return {"kind": "nelbo", "every": 2, "at_start": True, "data": HELD, **changes}


def run(folder, spec, code=0):
    write_spec(folder, spec)
    result = run_dare_here("run", "spec.yaml", folder=folder)
    assert result.code == code, result.stderr
    return result


@pytest.mark.parametrize("adapter", [ToyMasked(5, 8, seed=3), ToyBlock(5, 8, seed=3, block_length=2)])
def test_the_mean_over_many_draws_is_the_elbo(adapter):
    tokens = torch.arange(5)[None] % 3
    prompt = (torch.arange(5) < 2)[None]
    rows, draws = rows_of(tokens, prompt, ~prompt), 3000
    views = nelbo_views(rows, adapter.facts, Address(1, "eval/x"), draws)
    counts = views.scored.sum(dim=1)
    assert counts.bincount().tolist() == [0, 1000, 1000, 1000]
    sums = (views.weight * adapter.token_logp(views).logp).sum(dim=1)
    error = float(sums.std() / draws**0.5)
    assert abs(float(sums.mean() - exact_elbo(adapter, rows))) < 4 * error


@pytest.mark.parametrize("model", ["toy-masked", "toy-block"])
def test_a_run_without_rollouts_measures_and_learns(tmp_path, model):
    config = {"vocab_size": 8, "max_positions": 12} | ({"block_length": 3} if model == "toy-block" else {})
    spec = offline_spec(
        eval=[evaluated()], model__kind=model, model__config=config, run__keep_best="eval/elbo_per_token"
    )
    run(tmp_path, spec)
    lines = metrics_of(tmp_path / "runs/toy")
    found = [line["eval/nelbo_per_token"] for line in lines if "eval/nelbo_per_token" in line]
    assert len(found) == 3
    assert found[-1] < found[0]
    result = tmp_path / "runs/toy/eval/step_4-eval"
    protocol = json.loads((result / "protocol.json").read_text())
    assert (protocol["evaluator"], protocol["draws"], protocol["items"]) == ("nelbo", 8, 3)
    state = json.loads((tmp_path / "runs/toy/state.json").read_text())
    assert state["best"]["metric"] == "eval/elbo_per_token"


def test_every_evaluation_meets_the_same_masks(tmp_path):
    run(tmp_path, offline_spec(eval=[evaluated(every=1)], optim__lr=1e-12, optim__warmup_steps=0))
    found = [line["eval/nelbo_per_token"] for line in metrics_of(tmp_path / "runs/toy") if "eval/items" in line]
    assert len(found) == 5
    assert max(found) - min(found) < 1e-9


def test_small_microbatches_change_nothing(tmp_path):
    values = []
    for name, tokens in (("one", 1), ("all", 8192)):
        run(tmp_path / name, offline_spec(eval=[evaluated(tokens_per_microbatch=tokens)]))
        values.append(metrics_of(tmp_path / name / "runs/toy")[-1]["eval/nelbo_per_token"])
    assert values[0] == pytest.approx(values[1], rel=1e-12)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("fff" * 5, "prompt and answer make 17 tokens; the model takes 12"),
        ("fö", "'odd' holds 'ö'; the toy vocabulary is 'abcdef'"),
    ],
    ids=["long", "foreign"],
)
def test_an_evaluations_row_that_does_not_fit_is_named_before_anything_is_written(tmp_path, question, said):
    rows = [{"id": "fits", "question": "fff", "answer": "a"}, {"id": "odd", "question": question, "answer": "a"}]
    (tmp_path / "misfit.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = run(tmp_path, offline_spec(eval=[evaluated(data=HELD | {"path": "misfit.jsonl"})]), code=2)
    assert f"misfit.jsonl:2: row 'odd': {said}" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_rows_without_answers_and_rows_that_are_trained_on_are_refused(tmp_path):
    prompts = {key: value for key, value in HELD.items() if key != "completion"}
    result = run(tmp_path / "a", offline_spec(eval=[evaluated(data=prompts)]), code=2)
    assert "nelbo scores answers, and these rows have none" in result.stderr
    result = run(tmp_path / "b", offline_spec(eval=[evaluated(data=HELD | {"path": "train.jsonl"})]), code=2)
    assert "10 of 10 prompts are trained on as well" in result.stderr
