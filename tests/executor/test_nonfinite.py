"""What is not finite stops the update before any weight moves, and is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.executor.toy_training import ClippedRatio, RatioSection, toy_engine, toy_objective
from torch import nn

from dare_core.errors import NonFiniteError, UserError
from dare_core.loops.update import update
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import LossOutput


class Overflow(nn.Module):
    """Passes its input on, or infinity."""

    broken = False

    def forward(self, x):
        return x / 0 if self.broken else x


def layered_engine(**options):
    engine = toy_engine(40, **options)
    toy = engine.adapter
    toy.module.layer = Overflow()
    plain = toy.token_logp

    def token_logp(views, *, entropy=False):
        scores = plain(views, entropy=entropy)
        return replace(scores, logp=toy.module.layer(scores.logp))

    toy.token_logp = token_logp
    return engine


def copies(engine):
    return [p.detach().clone() for p in engine.adapter.module.parameters()]


@pytest.mark.parametrize("mode", ["direct", "two-pass"])
@pytest.mark.parametrize("on_nonfinite", ["stop", "skip"])
def test_a_nan_weight_ends_the_update_naming_parameter_step_and_sample(mode, on_nonfinite):
    engine = toy_engine(40, on_nonfinite=on_nonfinite)
    objective = toy_objective(engine, ClippedRatio(RatioSection()))
    with torch.no_grad():
        engine.adapter.module.table[3] = float("nan")
    before = copies(engine)
    with pytest.raises(
        NonFiniteError, match=r"training step 1, inner update 1: .*'logp'.*weight 'table'.*samples: 10\d \(row 'row-"
    ):
        update(engine, objective, mode)
    after = copies(engine)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True) if not a.isnan().any())


def test_an_overflowing_module_is_named_when_all_weights_are_finite():
    engine = layered_engine()
    objective = toy_objective(engine, ClippedRatio(RatioSection()))
    engine.adapter.module.layer.broken = True
    with pytest.raises(NonFiniteError, match="all weights are finite; module 'layer' is the first"):
        update(engine, objective, "two-pass")


@pytest.mark.parametrize("mode", ["direct", "two-pass"])
def test_skip_passes_the_step_over_and_says_so(mode):
    engine = layered_engine(on_nonfinite="skip")
    objective = toy_objective(engine, ClippedRatio(RatioSection()))
    before = copies(engine)
    engine.adapter.module.layer.broken = True
    assert not update(engine, objective, mode).report.applied
    assert all(torch.equal(a, b) for a, b in zip(copies(engine), before, strict=True))
    engine.adapter.module.layer.broken = False
    assert update(engine, objective, mode).report.applied


def test_a_model_that_starts_with_a_nan_weight_is_refused_by_name():
    toy = ToyMasked(8, 16)
    with torch.no_grad():
        toy.module.bias[0, 0] = float("nan")
    with pytest.raises(UserError, match="weight 'bias' of the loaded model is not finite"):
        toy_engine(adapter=toy)


class BrokenLoss(ClippedRatio):
    def loss(self, inputs):
        return LossOutput(loss=inputs.live.value.sum() / 0.0)


class RootLoss(ClippedRatio):
    """Finite, with an infinite slope."""

    def loss(self, inputs):
        return LossOutput(loss=(inputs.live.value - inputs.live.value.detach()).clamp(min=0).sqrt().sum())


@pytest.mark.parametrize("mode", ["direct", "two-pass"])
def test_a_loss_that_is_not_finite_is_told_from_scores_that_are_not(mode):
    engine = toy_engine()
    with pytest.raises(NonFiniteError, match="the loss is not finite although all scores are"):
        update(engine, toy_objective(engine, BrokenLoss(RatioSection())), mode)


def test_an_old_estimate_that_is_not_finite_is_named():
    engine = toy_engine()
    objective = toy_objective(engine, ClippedRatio(RatioSection()))
    value = objective.old.value.clone()
    value[2] = float("nan")
    with pytest.raises(NonFiniteError, match="because the old policy's estimate is not"):
        update(engine, replace(objective, old=replace(objective.old, value=value)), "two-pass")


@pytest.mark.parametrize("mode", ["direct", "two-pass"])
def test_a_gradient_that_is_not_finite_is_named(mode):
    engine = toy_engine()
    before = copies(engine)
    with pytest.raises(NonFiniteError, match="gradient of the loss with respect to score 'logp'"):
        update(engine, toy_objective(engine, RootLoss(RatioSection())), mode)
    assert all(torch.equal(a, b) for a, b in zip(copies(engine), before, strict=True))
