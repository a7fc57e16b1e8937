"""Every installed algorithm, by its own estimator and settings: two passes equal one, zero advantages move nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.executor.toy_training import gradients, toy_engine

from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.data.rows import demonstration_rows, pair_rows
from dare_core.interfaces import RolloutRequest
from dare_core.interfaces.engine import Objective
from dare_core.loops.inner import InnerUpdates, Learner
from dare_core.loops.update import direct_parts, replay, update
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import (
    Address,
    Advantages,
    AttentionLayout,
    Demonstration,
    Pair,
    Prompt,
    Verdict,
    VerdictStatus,
)

CATALOG = Catalog.load()
ALGORITHMS = {item.qualified: item for item in CATALOG.components(Slot.ALGORITHM) if item.distribution != "dare-toys"}
PROMPTS = [Prompt(id=f"p{i}", index=i, text=text) for i, text in enumerate(["ab", "cde"])]
SETTINGS = NativeSection(new_tokens=4, block_length=2, temperature=1.0)


def build(item, **options):
    """A component by its config's defaults and these options, in groups of 3 where it forms groups."""
    fields = CATALOG.config_class(item).model_fields
    options |= {"group_size": 3} if "group_size" in fields else {}
    options |= {"root_branches": 3, "branches": 1} if "root_branches" in fields else {}
    return CATALOG.target_class(item)(CATALOG.config_class(item)(**options))


def toy_for(item):
    """A fresh toy of a family the algorithm works with, and its decoding layout."""
    if "block" in item.component.needs:
        return ToyBlock(8, 12, seed=1, block_length=2), AttentionLayout("block", 2)
    toy = ToyMasked(8, 12, seed=1)
    return toy, toy.facts.layout


def prepared(item, budget, mode="auto"):
    """Learner, rows and advantages for one algorithm on a toy with a reference policy."""
    toy, layout = toy_for(item)
    engine = toy_engine(budget, adapter=toy, reference=True, update=mode)
    algorithm = build(item)
    wanted = {path.split(".")[1]: v for path, v in item.component.defaults.items() if path.startswith("likelihood.")}
    estimator = build(CATALOG.find(Slot.LIKELIHOOD, wanted.pop("kind")), **wanted)
    learner = Learner(
        algorithm=algorithm,
        estimator=estimator,
        engine=engine,
        facts=toy.facts,
        layout=layout,
        seed=7,
        total_steps=10,
        mode=mode,
    )
    return learner, *rows_for(item, learner)


def rows_for(item, learner):
    toy, needs = learner.engine.adapter, item.component.needs
    padding = learner.algorithm.supervise_padding
    if "demonstrations" in needs:
        examples = [Demonstration(p, text) for p, text in zip(PROMPTS, ("abc", "f"), strict=True)]
        return demonstration_rows(examples, toy.text, toy.facts, supervise_padding=padding), None
    if "pairs" in needs:
        pairs = [Pair(p, chosen=text, rejected="ef") for p, text in zip(PROMPTS, ("abc", "f"), strict=True)]
        return pair_rows(pairs, toy.text, toy.facts, supervise_padding=padding), None
    request = RolloutRequest(
        prompts=PROMPTS,
        samples=3,
        settings=SETTINGS.settings(),
        address=Address(7, "rollout", 0),
        snapshots="snapshots" in needs,
        tree=learner.algorithm.tree,
    )
    rollout = NativeBackend(SETTINGS, toy).generate(request)
    # As if every answer ended, for algorithms that count others as wrong.
    rollout = replace(rollout, finish=("eos",) * len(rollout))
    scores = [1.0, 0.0, 0.5, 0.0, 0.0, 1.0]
    verdicts = [Verdict(s, VerdictStatus.CORRECT if s == 1 else VerdictStatus.WRONG) for s in scores]
    if "prefix" in needs:
        # Rewards of guesses that differ between rows and steps, the last one being the row's own.
        guesses = [torch.linspace(1 - s, s, int(n)).tolist() for s, n in zip(scores, rollout.forwards, strict=True)]
        verdicts = [replace(v, prefix_scores=tuple(g)) for v, g in zip(verdicts, guesses, strict=True)]
    return rollout, learner.algorithm.advantages(rollout, verdicts)


def moved_objective(learner, rows, advantages) -> Objective:
    """An objective whose old and reference policies differ from the live one."""
    selection = None if advantages is None else learner.algorithm.select(rows, advantages)
    objective = next(InnerUpdates(learner, rows, 0, advantages, selection).objectives())
    live = learner.estimate(objective.views, rows, "live")

    def shifted(scale):
        wave = scale * torch.sin(torch.arange(live.value.numel(), dtype=torch.float64)).reshape(live.value.shape)
        upper = None if live.upper is None else live.upper + wave * live.mask
        return replace(live, value=live.value + wave * live.mask, upper=upper)

    reference = shifted(-0.2) if learner.algorithm.uses_reference else None
    return replace(objective, old=shifted(0.3), reference=reference)


def one_pass(item):
    learner, rows, advantages = prepared(item, 100_000)
    objective = moved_objective(learner, rows, advantages)
    scores = learner.engine.adapter.token_logp(objective.views, entropy=learner.algorithm.uses_entropy)
    objective(scores).loss.backward()
    return gradients(learner.engine)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("budget", [1, 40, 100_000])
def test_two_passes_give_the_gradient_of_one_for_any_microbatch(name, budget):
    wanted = one_pass(ALGORITHMS[name])
    assert any(gradient.abs().sum() > 0 for gradient in wanted.values())
    learner, rows, advantages = prepared(ALGORITHMS[name], budget)
    objective = moved_objective(learner, rows, advantages)
    scores = learner.engine.score(objective.views, "live", entropy=learner.algorithm.uses_entropy)
    replay(learner.engine, objective, scores)
    assert_close(gradients(learner.engine), wanted)


def smallest_parts(learner, views, rows):
    """[N] the part of each view that the algorithm and its estimator declare, or None."""
    by = learner.algorithm.separable_by
    if by == "line":
        return torch.arange(len(views)) if learner.estimator.separate_views else views.row
    return {"row": views.row, "group": rows.group[views.row], None: None}[by]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_going_part_by_part_gives_the_same_gradient(name):
    wanted = one_pass(ALGORITHMS[name])
    learner, rows, advantages = prepared(ALGORITHMS[name], 100_000)
    objective = moved_objective(learner, rows, advantages)
    views = objective.views
    parts = [torch.arange(len(views))]
    owner = smallest_parts(learner, views, rows)
    if owner is not None:
        parts = [(owner == key).nonzero()[:, 0] for key in owner.unique()]
    learner.engine.accumulate_direct(views, objective, parts)
    assert_close(gradients(learner.engine), wanted)


def test_estimates_per_view_go_one_pass_though_no_rows_views_fit():
    of_view = [name for name, item in ALGORITHMS.items() if prepared(item, 1)[0].estimator.separate_views]
    assert {name.split(":")[1] for name in of_view} >= {"bgpo", "cj-grpo", "tracerl", "mdpo"}
    for name in set(of_view) - {n for n in of_view if n.endswith(":d-treerpo")}:
        learner, rows, advantages = prepared(ALGORITHMS[name], 1)
        objective = moved_objective(learner, rows, advantages)
        assert [len(part) for part in direct_parts(learner.engine, objective, "auto")] == [1] * len(objective.views)


def assert_close(found, wanted):
    assert found.keys() == wanted.keys()
    total = torch.stack([g.norm() for g in wanted.values()]).norm()
    for name, gradient in wanted.items():
        assert (found[name] - gradient).norm() <= 1e-12 * total, name


@pytest.mark.parametrize("mode", ["direct", "two-pass"])
@pytest.mark.parametrize("name", [n for n, item in ALGORITHMS.items() if "prompts" in item.component.needs])
def test_zero_advantages_give_no_gradient_but_that_of_the_kl_term(name, mode):
    learner, rows, advantages = prepared(ALGORITHMS[name], 100_000, mode)
    nothing = Advantages(value=torch.zeros_like(advantages.value), usable=advantages.usable)
    objective = next(InnerUpdates(learner, rows, 0, nothing).objectives())
    assert direct_parts(learner.engine, objective, mode) is None or mode == "direct"
    # Before any update the reference is the live policy, where every KL surrogate has slope 0.
    done = update(learner.engine, objective, mode)
    assert done.report.grad_norm == pytest.approx(0.0, abs=1e-12)
