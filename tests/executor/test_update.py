"""The update gives the one-pass gradient, whatever the mode and the micro-batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.executor.toy_training import (
    BatchContrast,
    ClippedRatio,
    GroupContrast,
    RatioSection,
    gradients,
    toy_engine,
    toy_objective,
)

from dare_core.errors import UserError
from dare_core.loops import update as update_loop
from dare_core.loops.update import direct_parts, replay, update

ALGORITHMS = {
    "rows": ClippedRatio(RatioSection()),
    "rows with entropy": ClippedRatio(RatioSection(entropy=True)),
    "rows with reference": ClippedRatio(RatioSection(kl=True)),
    "groups": GroupContrast(RatioSection()),
    "everything": BatchContrast(RatioSection()),
}


def one_pass(algorithm) -> dict[str, torch.Tensor]:
    """Gradient by plain autograd over all views at once."""
    engine = toy_engine()
    objective = toy_objective(engine, algorithm)
    objective(engine.adapter.token_logp(objective.views, entropy=algorithm.uses_entropy)).loss.backward()
    return gradients(engine)


def assert_same(found, wanted) -> None:
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert torch.linalg.vector_norm(found[name] - gradient) <= 1e-12 * torch.linalg.vector_norm(gradient)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("budget", [1, 25, 60, 10_000])
def test_two_pass_gradient_is_the_one_pass_gradient_for_any_microbatch_size(name, budget):
    wanted = one_pass(ALGORITHMS[name])
    engine = toy_engine(budget)
    objective = toy_objective(engine, ALGORITHMS[name])
    scores = engine.score(objective.views, "live", entropy=ALGORITHMS[name].uses_entropy)
    replay(engine, objective, scores)
    assert_same(gradients(engine), wanted)


@pytest.mark.parametrize(("name", "budget"), [("rows", 30), ("rows with entropy", 60), ("groups", 70), ("rows", 9999)])
def test_direct_gradient_is_the_one_pass_gradient_part_by_part(name, budget):
    wanted = one_pass(ALGORITHMS[name])
    engine = toy_engine(budget)
    objective = toy_objective(engine, ALGORITHMS[name])
    parts = direct_parts(engine, objective, "direct")
    assert (len(parts) > 1) == (budget < 9999)
    engine.accumulate_direct(objective.views, objective, parts)
    assert_same(gradients(engine), wanted)


def test_parts_hold_every_view_once_and_never_split_a_group():
    engine = toy_engine(70)
    objective = toy_objective(engine, ALGORITHMS["groups"])
    parts = direct_parts(engine, objective, "auto")
    assert sorted(torch.cat(parts).tolist()) == list(range(len(objective.views)))
    groups = [set(objective.rows.group[objective.views.row[part]].tolist()) for part in parts]
    assert sum(len(g) for g in groups) == len(set.union(*groups))


def test_auto_takes_two_passes_where_terms_cross_all_rows_and_they_do_not_fit():
    engine = toy_engine(70)
    assert direct_parts(engine, toy_objective(engine, ALGORITHMS["everything"]), "auto") is None
    assert direct_parts(engine, toy_objective(engine, ALGORITHMS["rows"]), "auto") is not None


def test_auto_takes_two_passes_where_a_loss_over_all_views_would_be_taken_too_often(monkeypatch):
    engine = toy_engine(30)
    objective = toy_objective(engine, ALGORITHMS["rows"])
    count = len(direct_parts(engine, objective, "auto"))
    monkeypatch.setattr(update_loop, "MOST_PARTS", count - 1)
    assert direct_parts(engine, objective, "auto") is None
    assert len(direct_parts(engine, objective, "direct")) == count


@pytest.mark.parametrize(("name", "budget"), [("everything", 70), ("rows", 10)])
def test_direct_that_does_not_fit_is_an_error_that_names_the_way_out(name, budget):
    engine = toy_engine(budget)
    objective = toy_objective(engine, ALGORITHMS[name])
    with pytest.raises(UserError, match=r"engine\.update: 'direct' needs .*use 'auto' or 'two-pass'"):
        update(engine, objective, "direct")


@pytest.mark.parametrize("mode", ["direct", "two-pass"])
@pytest.mark.parametrize("budget", [35, 45, 10_000])
def test_ratio_is_exactly_one_at_the_first_inner_update(mode, budget):
    engine = toy_engine(budget)
    objective = replace(toy_objective(engine, ALGORITHMS["rows"]), old=None)
    assert update(engine, objective, mode).loss.metrics["ratio"].value == 1.0


def test_a_part_without_a_gradient_is_not_taken_backwards():
    engine = toy_engine(30)
    objective = toy_objective(engine, ALGORITHMS["rows"])
    value = objective.advantages.value.clone()
    value[:3] = 0.0
    objective = replace(objective, advantages=replace(objective.advantages, value=value), old=None)
    still = value[objective.views.row] == 0
    assert still.any()
    assert not still.all()
    parts = [(objective.views.row == row).nonzero()[:, 0] for row in range(6)]
    forwards = engine.counters()["forwards"]
    engine.accumulate_direct(objective.views, objective, parts)
    assert engine.counters()["backward_tokens"] == int(objective.views.valid[~still].sum())
    assert engine.counters()["forwards"] - forwards == len(objective.views)


@pytest.mark.parametrize("mode", ["direct", "two-pass"])
def test_zero_advantages_move_nothing(mode):
    engine = toy_engine(40)
    objective = toy_objective(engine, ALGORITHMS["rows"])
    nothing = replace(objective.advantages, value=torch.zeros(6, dtype=torch.float64))
    before = {n: p.clone() for n, p in engine.adapter.module.named_parameters()}
    done = update(engine, replace(objective, advantages=nothing, old=None), mode)
    assert done.report.grad_norm == 0.0
    assert all(torch.equal(p, before[n]) for n, p in engine.adapter.module.named_parameters())


def test_both_modes_take_the_same_step():
    weights = []
    for mode in ("direct", "two-pass"):
        engine = toy_engine(40)
        update(engine, toy_objective(engine, ALGORITHMS["rows"]), mode)
        weights.append(engine.adapter.module.bias.detach().clone())
    torch.testing.assert_close(*weights, rtol=1e-12, atol=1e-12)


def test_two_pass_runs_views_without_gradient_once_only():
    engine = toy_engine(40)
    objective = toy_objective(engine, ALGORITHMS["rows"])
    start = engine.counters()["backward_tokens"]
    update(engine, objective, "two-pass")
    silent = objective.advantages.value == 0
    tokens = objective.views.valid.sum(dim=1)
    spent = engine.counters()["backward_tokens"] - start
    assert spent <= int(tokens[~silent[objective.views.row]].sum())
