"""d1, Coupled-GRPO and CJ-GRPO on toys: what must hold whatever the numbers."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.executor.policy_objectives import (
    ALGORITHMS,
    SCORES,
    drifted,
    loss_and_gradient,
    objective_of,
    toy_rollout,
)
from tests.executor.toy_training import gradients, toy_engine
from tests.made_inputs import loss_inputs

from dare_algos_grpo import plugin
from dare_algos_grpo.cj_grpo import CjGrpo
from dare_algos_grpo.config import (
    CjGrpoSection,
    D1Section,
    OneStepSection,
)
from dare_algos_grpo.d1 import D1
from dare_core.api import Component, SectionConfig
from dare_core.engine.config import LocalSection
from dare_core.interfaces import Algorithm
from dare_core.loops.update import update
from dare_core.rollout.config import NativeSection
from dare_core.spec.sections import OptimSection, PeftSection
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import LossInputs

COMPONENTS = {component.kind: component for component in plugin.dare_algorithms()}
kinds = pytest.mark.parametrize("kind", ALGORITHMS)

REDUCTIONS: dict[str, dict[str, Any]] = {
    "own": {},
    "token-mean": {"reduction": "token-mean"},
    "sequence-mean-token-sum": {"reduction": "sequence-mean-token-sum"},
    "sequence-mean-token-mean": {"reduction": "sequence-mean-token-mean"},
    "fixed-length": {"reduction": "fixed-length", "length_divisor": 6.0},
    "longest": {"reduction": "fixed-length"},
}
reductions = pytest.mark.parametrize("reduction", REDUCTIONS)


@kinds
def test_ratio_is_one_at_the_first_inner_update(kind):
    adapter = ToyMasked(8, 16, seed=1)
    objective = objective_of(kind, adapter, toy_rollout(), SCORES, reference=adapter, reduction="token-mean")
    out, _ = loss_and_gradient(objective, adapter)
    rows = objective.rows
    trained = rows.completion if kind != "cj-grpo" else rows.response
    weights = trained.sum(dim=1)
    mean_advantage = (objective.advantages.value * weights).sum() / weights.sum()
    assert float(out.loss.detach()) == pytest.approx(-float(mean_advantage), abs=1e-6)
    assert out.metrics["ratio"].value == 1.0
    assert out.metrics["clip_fraction"].value == 0.0
    assert out.metrics["kl"].value == out.metrics["kl_old"].value == 0.0


@kinds
@pytest.mark.parametrize("scale", ["none", "std", "population-std"])
def test_equal_rewards_give_no_gradient_without_kl(kind, scale):
    adapter = ToyMasked(8, 16, seed=1)
    objective = objective_of(
        kind, adapter, toy_rollout(), [0.1] * 6, old=drifted(adapter, 0.1), kl_weight=0.0, scale=scale
    )
    out, found = loss_and_gradient(objective, adapter)
    assert float(out.loss.detach()) == 0.0
    assert all(torch.equal(g, torch.zeros_like(g)) for g in found)


@kinds
@reductions
def test_row_order_and_padding_change_neither_loss_nor_gradient(kind, reduction):
    adapter = ToyMasked(8, 16, seed=1)
    policies = {"old": drifted(adapter, 0.3), "reference": drifted(adapter, -0.2)}
    order = torch.tensor([4, 1, 0, 5, 3, 2])
    straight = objective_of(kind, adapter, toy_rollout(), SCORES, **policies, **REDUCTIONS[reduction])
    shuffled_scores = [SCORES[i] for i in order.tolist()]
    other = objective_of(kind, adapter, toy_rollout(3, order), shuffled_scores, **policies, **REDUCTIONS[reduction])
    loss, gradient = loss_and_gradient(straight, adapter)
    other_loss, other_gradient = loss_and_gradient(other, adapter)
    torch.testing.assert_close(other_loss.loss, loss.loss)
    for mine, theirs in zip(gradient, other_gradient, strict=True):
        torch.testing.assert_close(theirs, mine)


@kinds
@reductions
def test_a_failed_verdict_takes_its_row_out_of_the_batch(kind, reduction):
    adapter = ToyMasked(8, 16, seed=1)
    policies = {"old": drifted(adapter, 0.3), "reference": drifted(adapter, -0.2)}
    whole = objective_of(kind, adapter, toy_rollout(), [*SCORES[:4], None, None], **policies, **REDUCTIONS[reduction])
    kept = objective_of(kind, adapter, toy_rollout(0, torch.arange(4)), SCORES[:4], **policies, **REDUCTIONS[reduction])
    loss, gradient = loss_and_gradient(whole, adapter)
    kept_loss, kept_gradient = loss_and_gradient(kept, adapter)
    torch.testing.assert_close(loss.loss, kept_loss.loss)
    for mine, theirs in zip(gradient, kept_gradient, strict=True):
        torch.testing.assert_close(mine, theirs)


@kinds
def test_a_batch_of_failed_verdicts_has_a_zero_gradient(kind):
    adapter = ToyMasked(8, 16, seed=1)
    out, found = loss_and_gradient(objective_of(kind, adapter, toy_rollout(), [None] * 6, reference=adapter), adapter)
    assert float(out.loss.detach()) == 0.0
    assert all(torch.equal(g, torch.zeros_like(g)) for g in found)


@kinds
@reductions
@pytest.mark.parametrize(("mode", "budget"), [("two-pass", 20), ("direct", 60)])
def test_two_passes_and_one_give_the_gradient_of_the_whole(kind, reduction, mode, budget, monkeypatch):
    engine = toy_engine(budget, optim=OptimSection(batch_size=6, clip_norm=None))
    adapter, step, kept = engine.adapter, engine.step, {}
    policies = {"old": drifted(adapter, 0.3), "reference": drifted(adapter, -0.2)}
    objective = objective_of(kind, adapter, toy_rollout(), SCORES, **policies, **REDUCTIONS[reduction])
    expected = loss_and_gradient(objective, adapter)[1]

    def keep_gradients():
        kept.update(gradients(engine))
        return step()

    monkeypatch.setattr(engine, "step", keep_gradients)
    update(engine, objective, mode)
    for (name, _), want in zip(adapter.module.named_parameters(), expected, strict=True):
        torch.testing.assert_close(kept[name], want)


@reductions
def test_one_step_trajectory_makes_cj_grpo_d1_without_prompt_masking(reduction):
    adapter = ToyMasked(8, 16, seed=1)
    rollout = toy_rollout()
    rollout = replace(
        rollout,
        trace=replace(rollout.trace, commit_step=torch.where(rollout.response, 0, -1)),
        completion=rollout.response,
    )
    policies = {"old": drifted(adapter, 0.3), "reference": drifted(adapter, -0.2)}
    d1 = objective_of("d1-plain", adapter, rollout, SCORES, **policies, **REDUCTIONS[reduction])
    cj = objective_of("cj-grpo", adapter, rollout, SCORES, **policies, **REDUCTIONS[reduction])
    left, right = loss_and_gradient(d1, adapter), loss_and_gradient(cj, adapter)
    torch.testing.assert_close(left[0].loss, right[0].loss)
    for mine, theirs in zip(left[1], right[1], strict=True):
        torch.testing.assert_close(mine, theirs)


def test_steps_weigh_the_same_whatever_their_number_of_tokens():
    row, step = torch.tensor([0, 0]), torch.tensor([0, 1])
    mask = torch.tensor([[True, True, True, False], [False, False, False, True]])
    inputs = loss_inputs(
        torch.zeros(2, 4, requires_grad=True), advantages=torch.tensor([1.0]), row=row, step=step, mask=mask
    )
    loss = CjGrpo(CjGrpoSection(kl_weight=0.0)).loss(inputs).loss
    found = torch.autograd.grad(loss, inputs.live.value)[0]
    torch.testing.assert_close(found, -mask.float() / torch.tensor([[6.0], [2.0]]))


def test_only_completion_tokens_are_trained_unless_asked():
    completion = torch.tensor([[True, True, False]])

    def gradient(algorithm: Algorithm) -> list[bool]:
        inputs = loss_inputs(
            torch.zeros(1, 3, requires_grad=True), advantages=torch.tensor([1.0]), completion=completion
        )
        return (torch.autograd.grad(algorithm.loss(inputs).loss, inputs.live.value)[0][0] != 0).tolist()

    assert gradient(D1(D1Section())) == [True, True, False]
    assert gradient(D1(D1Section(trained_tokens="response"))) == [True, True, True]


def test_dual_clip_beyond_c_has_no_gradient():
    def gradient(dual_clip: float | None) -> float:
        inputs = loss_inputs(
            torch.full((1, 1), 2.0, requires_grad=True), torch.zeros(1, 1), advantages=torch.tensor([-1.0])
        )
        algorithm = D1(D1Section(dual_clip=dual_clip, kl_weight=0.0))
        return float(torch.autograd.grad(algorithm.loss(inputs).loss, inputs.live.value)[0])

    assert gradient(3.0) == 0.0
    assert gradient(None) == pytest.approx(torch.e**2)


@kinds
def test_views_are_fresh_where_the_estimator_draws(kind):
    cls, section, _ = ALGORITHMS[kind]
    algorithm = cls(section())
    assert algorithm.fresh_views == (kind != "cj-grpo")
    assert algorithm.uses_reference
    assert not cls(section(kl_weight=0.0)).uses_reference


def test_an_estimate_per_row_is_refused():
    inputs = loss_inputs(torch.zeros(1, 3), advantages=torch.tensor([1.0]))
    rowwise = replace(inputs.live, per="row", value=torch.zeros(1), mask=torch.ones(1, dtype=torch.bool))
    with pytest.raises(TypeError, match="not per row"):
        D1(D1Section()).loss(LossInputs(**{**inputs.__dict__, "live": rowwise, "old": rowwise}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_divisor": 8.0}, "belongs to 'reduction: fixed-length', not to 'token-mean'"),
        ({"mean_reward_range": (0.8, 0.2)}, "must read"),
        ({"dual_clip": 1.2}, "must exceed"),
        ({"group_size": 1}, "greater than or equal to 2"),
        ({"reduction": "step-mean"}, "token-mean"),
    ],
)
def test_contradicting_options_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        D1Section(**options)


SECTIONS = {"rollout": NativeSection, "optim": OptimSection, "peft": PeftSection, "engine": LocalSection}
ESTIMATORS = {component.kind: component for component in plugin.dare_likelihood_estimators()}


def config_class(component: Component) -> type[SectionConfig]:
    """The component's own section."""
    module, _, name = component.config.partition(":")
    return getattr(importlib.import_module(module), name)


def sections_of(kind: str, paths: Mapping[str, Any]) -> dict[str, Any]:
    """The sections that dotted paths make, validated by their owners."""
    found: dict[str, dict[str, Any]] = {"algorithm": {}}
    for path, value in paths.items():
        if path == "peft":
            assert value is None
            continue
        name, *keys = path.split(".")
        place = found.setdefault(name, {})
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value
    likelihood = ESTIMATORS[found["likelihood"].pop("kind")]
    classes = {**SECTIONS, "algorithm": config_class(COMPONENTS[kind]), "likelihood": config_class(likelihood)}
    return {name: classes[name](**options) for name, options in found.items()}


@pytest.mark.parametrize("kind", COMPONENTS)
def test_defaults_and_presets_name_options_that_exist(kind):
    component = COMPONENTS[kind]
    for paths in ({}, *component.presets.values()):
        sections = sections_of(kind, {**component.defaults, **paths})
        assert sections["optim"].batch_size % sections["algorithm"].group_size == 0
        assert sections["rollout"].settings().temperature > 0


@pytest.mark.parametrize(
    "kind",
    [kind for kind, component in COMPONENTS.items() if "algorithm.scale" in component.presets.get("dare-2604", {})],
)
def test_the_unified_preset_is_one_loss_for_all(kind):
    sections = sections_of(kind, {**COMPONENTS[kind].defaults, **COMPONENTS[kind].presets["dare-2604"]})
    assert sections["optim"].batch_size == 16 * sections["algorithm"].group_size
    assert sections["algorithm"].scale == "std"
    assert (sections["optim"].lr, sections["algorithm"].kl_weight) == (5e-7, 0.0)


def test_naming_d1_alone_gives_the_authors_setting():
    section, sections = D1Section(), sections_of("d1", COMPONENTS["d1"].defaults)
    assert (section.group_size, section.inner_updates, section.clip_range) == (6, 12, 0.5)
    assert (section.kl_weight, section.kl_form, section.scale, section.baseline) == (0.04, "k3", "none", "mean")
    assert OneStepSection().prompt_mask == 0.15
    assert sections["optim"].lr == 3e-6
    assert (sections["rollout"].temperature, sections["rollout"].settings().steps_per_block) == (0.9, 16)
    assert (sections["peft"].r, sections["peft"].alpha) == (128, 64)
