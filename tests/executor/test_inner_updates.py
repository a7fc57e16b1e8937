"""Optimizer steps that reuse one batch: one plan scored under three policies, before the policy moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.executor.toy_training import ClippedRatio, MaskSection, RandomMasks, RatioSection, toy_engine, toy_rows

from dare_core.interfaces.engine import StepReport
from dare_core.loops.inner import InnerUpdates, Learner
from dare_core.loops.update import update
from dare_core.types import Advantages
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import write_llada_checkpoint


def learner_of(**options):
    engine = toy_engine(50, reference=True)
    return Learner(
        algorithm=ClippedRatio(RatioSection(**options)),
        estimator=RandomMasks(MaskSection()),
        engine=engine,
        facts=engine.adapter.facts,
        layout=engine.adapter.facts.layout,
        seed=7,
        total_steps=10,
        mode="auto",
    )


ADVANTAGES = Advantages(
    value=torch.tensor([1.0, -1.0, 0.5, 2.0, 0.0, -0.7], dtype=torch.float64), usable=torch.ones(6, dtype=torch.bool)
)


def test_shared_views_keep_the_first_scores_as_the_old_policy():
    learner = learner_of(inner=3)
    rows = toy_rows()
    inner = InnerUpdates(learner, rows, 0, ADVANTAGES)
    seen = []
    for objective in inner.objectives():
        seen.append(objective)
        inner.done(update(learner.engine, objective, "auto"))
    assert seen[0].old is None
    start = learner.estimator.reduce(seen[0].views, inner.results[0].scores, rows)
    for later in seen[1:]:
        assert later.views is seen[0].views
        assert torch.equal(later.old.value, start.value)
    ratios = [result.loss.metrics["ratio"].value for result in inner.results]
    assert ratios[0] == 1.0
    assert ratios[1] != 1.0
    assert [objective.progress.inner for objective in seen] == [0, 1, 2]


@pytest.mark.parametrize("kl", [False, True])
def test_fresh_views_are_all_drawn_and_scored_before_the_first_step(kl):
    learner = learner_of(inner=3, fresh=True, kl=kl)
    rows = toy_rows()
    wanted = [learner.plan(rows, 4, inner, None) for inner in range(3)]
    start = [learner.estimate(views, rows, "live").value for views in wanted]
    inner = InnerUpdates(learner, rows, 4, ADVANTAGES)
    for number, objective in enumerate(inner.objectives()):
        assert torch.equal(objective.views.inputs, wanted[number].inputs)
        if number:
            assert torch.equal(objective.old.value, start[number])
            assert not torch.equal(objective.views.inputs, wanted[0].inputs)
        if kl:
            assert torch.equal(objective.reference.value, start[number])
        inner.done(update(learner.engine, objective, "auto"))


@pytest.fixture(scope="module")
def tiny_llada(tmp_path_factory):
    return write_llada_checkpoint(
        tmp_path_factory.mktemp("llada") / "model",
        d_model=192,
        n_heads=3,
        n_kv_heads=3,
        mlp_hidden_size=320,
        initializer_range=0.2,
    )


@pytest.mark.parametrize("mode", ["direct", "two-pass"])
@pytest.mark.parametrize("budget", [30, 50, 10_000])
def test_the_first_kl_term_of_equal_policies_has_no_gradient_to_the_last_bit(mode, budget, tiny_llada):
    # A real architecture in float32, where the last bits of a score depend on what is computed beside it.
    adapter = LladaAdapter.load(LladaSection(path=str(tiny_llada)), device=torch.device("cpu"), dtype=torch.float32)
    engine = toy_engine(budget, adapter=adapter, reference=True)
    learner = replace(learner_of(kl=True), engine=engine, facts=adapter.facts, layout=adapter.facts.layout, mode=mode)
    nothing = replace(ADVANTAGES, value=torch.zeros(6, dtype=torch.float64))
    objective = next(InnerUpdates(learner, toy_rows(), 0, nothing).objectives())
    assert learner.update(objective).report.grad_norm == 0.0


def test_an_update_that_was_skipped_leaves_the_policy_old():
    learner = learner_of(inner=2)
    inner = InnerUpdates(learner, toy_rows(), 0, ADVANTAGES)
    objectives = inner.objectives()
    first = update(learner.engine, next(objectives), "auto")
    inner.done(replace(first, report=StepReport(applied=False, grad_norm=float("nan"), learning_rate=0.1)))
    assert next(objectives).old is None


def test_views_of_a_step_do_not_depend_on_earlier_steps():
    learner, rows = learner_of(), toy_rows()
    before = learner.plan(rows, 5, 0, None).inputs
    inner = InnerUpdates(learner, rows, 0, ADVANTAGES)
    for objective in inner.objectives():
        inner.done(update(learner.engine, objective, "auto"))
    assert torch.equal(learner.plan(rows, 5, 0, None).inputs, before)
    assert not torch.equal(learner.plan(rows, 6, 0, None).inputs, before)
