"""The reference engine: micro-batches, optimizer, reference policy, state."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.executor.toy_training import (
    ClippedRatio,
    RatioSection,
    gradients,
    toy_context,
    toy_engine,
    toy_objective,
    toy_rows,
)
from torch import nn

from dare_core.engine.microbatches import by_token_budget
from dare_core.engine.optimizer import Optimizer, learning_rate
from dare_core.errors import NonFiniteError, UserError
from dare_core.loops.update import update
from dare_core.spec.sections import OptimSection, PeftSection
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import Scores


def views_of(engine):
    return toy_objective(engine, ClippedRatio(RatioSection())).views


def test_microbatches_hold_every_item_once_within_the_budget():
    tokens = torch.tensor([5, 9, 1, 30, 5, 2])
    parts = by_token_budget(tokens, 12)
    assert sorted(torch.cat(parts).tolist()) == list(range(6))
    assert all(int(tokens[part].sum()) <= 12 or len(part) == 1 for part in parts)


def test_no_items_make_no_microbatch():
    assert by_token_budget(torch.zeros(0, dtype=torch.int64), 12) == []


@pytest.mark.parametrize("budget", [1, 23, 10_000])
def test_scores_do_not_depend_on_microbatches_or_neighbours(budget):
    engine = toy_engine(budget)
    views = views_of(engine)
    scores = engine.score(views, "live", entropy=True)
    alone = engine.score(views.take(torch.tensor([4])), "live", entropy=True)
    whole = toy_engine().score(views, "live", entropy=True)
    torch.testing.assert_close(scores.logp, whole.logp, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(scores.entropy[4:5], alone.entropy, rtol=1e-13, atol=1e-13)
    assert not scores.logp.requires_grad


@pytest.mark.parametrize("budget", [1, 23])
def test_accumulated_microbatches_equal_one_batch(budget):
    found = []
    for size in (budget, 10_000):
        engine = toy_engine(size)
        views = views_of(engine)
        engine.accumulate(views, Scores(logp=views.weight.to(torch.float64)))
        found.append(gradients(engine))
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-12, atol=1e-12)


def test_views_without_gradient_are_not_run():
    engine = toy_engine(1)
    views = views_of(engine)
    upstream = torch.zeros_like(views.weight, dtype=torch.float64)
    upstream[3, views.scored[3]] = 1.0
    before = engine.counters()["forwards"]
    engine.accumulate(views, Scores(logp=upstream))
    assert engine.counters()["forwards"] == before + 1


def test_module_rests_in_evaluation_mode():
    engine = toy_engine()
    engine.adapter.module.train()
    update(engine, toy_objective(engine, ClippedRatio(RatioSection())), "two-pass")
    assert not engine.adapter.module.training


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.775, 0.55, 0.325]),
        ("cosine", [0.5, 1.0, 1.0, 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)), 0.55, None]),
    ],
)
def test_learning_rate_warms_up_then_follows_its_schedule(schedule, wanted):
    section = OptimSection(batch_size=1, lr=1.0, schedule=schedule, warmup_steps=2, min_lr_ratio=0.1)
    for update_index, value in enumerate(wanted):
        if value is not None:
            assert learning_rate(section, update_index, 6) == pytest.approx(value)


def test_weight_decay_touches_matrices_only():
    module = nn.Linear(3, 2).double()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer = Optimizer(module, OptimSection(batch_size=1, lr=0.1, weight_decay=0.5), 10)
    optimizer.apply(optimizer.gradient_norm())
    torch.testing.assert_close(module.weight.detach(), before["weight"] * (1 - 0.1 * 0.5))
    assert torch.equal(module.bias, before["bias"])


def test_clipping_scales_all_gradients_by_the_global_norm():
    steps = []
    for scale, bound in ((1.0, None), (100.0, 5.0)):
        module = nn.Linear(1, 1, bias=True).double()
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        section = OptimSection(batch_size=1, lr=1.0, clip_norm=bound, betas=(0.0, 0.0), eps=1.0)
        optimizer = Optimizer(module, section, 10)
        module.weight.grad = torch.tensor([[3.0 * scale]], dtype=torch.float64)
        module.bias.grad = torch.tensor([4.0 * scale], dtype=torch.float64)
        norm = optimizer.gradient_norm()
        assert norm == pytest.approx(5.0 * scale)
        optimizer.apply(norm)
        steps.append(torch.cat([module.weight.detach().flatten(), module.bias.detach()]))
    torch.testing.assert_close(*steps)


def test_small_updates_of_bfloat16_weights_are_not_rounded_away():
    module = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    nn.init.ones_(module.weight)
    optimizer = Optimizer(module, OptimSection(batch_size=1, lr=1e-3, clip_norm=None), 100)
    for _ in range(4):
        module(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        assert module.weight.grad is None
        optimizer.apply(optimizer.gradient_norm())
    masters = dict(optimizer.named_weights())
    torch.testing.assert_close(masters["weight"].detach(), torch.full((4, 4), 1 - 4e-3), rtol=1e-5, atol=1e-5)
    assert torch.equal(module.weight, masters["weight"].to(torch.bfloat16))
    assert module.weight[0, 0] < 1


def test_bfloat16_gradients_are_gathered_in_float32():
    module = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    optimizer = Optimizer(module, OptimSection(batch_size=1), 100)
    for value in (256.0, 1.0):
        module(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()
    assert optimizer.gradients()["weight"].item() == 257.0


def test_reference_stays_where_the_run_started_and_live_weights_come_back():
    engine = toy_engine(reference=True)
    objective = toy_objective(engine, ClippedRatio(RatioSection()))
    start = engine.score(objective.views, "live").logp
    update(engine, objective, "two-pass")
    live = engine.score(objective.views, "live").logp
    assert torch.equal(engine.score(objective.views, "reference").logp, start)
    assert torch.equal(engine.score(objective.views, "live").logp, live)
    assert not torch.equal(live, start)


def test_fresh_adapters_are_their_own_reference_and_continued_ones_keep_theirs(tmp_path):
    engine = toy_engine(reference=True, peft=PeftSection(r=2, alpha=4))
    objective = toy_objective(engine, ClippedRatio(RatioSection()))
    base = ToyMasked(8, 16, seed=1).token_logp(objective.views).logp.detach()
    update(engine, objective, "two-pass")
    assert torch.equal(engine.score(objective.views, "reference").logp, base)
    trained = engine.score(objective.views, "live").logp
    engine.adapter.save_adapter(tmp_path)
    continued = toy_engine(reference=True, peft=PeftSection(r=2, alpha=4, adapter=str(tmp_path)))
    update(continued, objective, "two-pass")
    torch.testing.assert_close(continued.score(objective.views, "reference").logp, trained)
    assert not torch.equal(trained, base)


@pytest.mark.parametrize("peft", [None, PeftSection(r=2, alpha=4)])
@pytest.mark.parametrize("mix", [1.0, 0.25])
def test_a_reference_that_moves_follows_the_live_weights_every_so_many_updates(tmp_path, peft, mix):
    engine = toy_engine(reference=True, peft=peft, reference_every=2, reference_mix=mix)
    objective = toy_objective(engine, ClippedRatio(RatioSection()))
    names = [name for name, p in engine.adapter.module.named_parameters() if p.requires_grad]

    def live() -> dict[str, torch.Tensor]:
        return {name: dict(engine.adapter.module.named_parameters())[name].detach().clone() for name in names}

    start = live()
    update(engine, objective, "two-pass")
    assert all(torch.equal(engine._reference.tensors()[name], start[name]) for name in names)
    update(engine, objective, "two-pass")
    for name, weight in live().items():
        torch.testing.assert_close(engine._reference.tensors()[name], start[name] + mix * (weight - start[name]))
    if mix == 1.0:
        scores = [engine.score(objective.views, policy).logp for policy in ("live", "reference")]
        assert torch.equal(*scores)
    engine.save(tmp_path)
    update(engine, objective, "two-pass")
    again = toy_engine(reference=True, peft=peft, reference_every=2, reference_mix=mix)
    again.load(tmp_path)
    kept = engine._reference.tensors()
    assert all(torch.equal(again._reference.tensors()[name], kept[name]) for name in names)


def test_a_skipped_update_counts_towards_the_references_next_move():
    engine = toy_engine(reference=True, reference_every=2, on_nonfinite="skip")
    objective = toy_objective(engine, ClippedRatio(RatioSection()))
    update(engine, objective, "two-pass")
    engine.reject(NonFiniteError("made"))
    bias = dict(engine.adapter.module.named_parameters())["bias"]
    assert torch.equal(engine._reference.tensors()["bias"], bias)


def test_reference_of_an_engine_built_without_one_is_refused():
    engine = toy_engine()
    with pytest.raises(ValueError, match="without a reference policy"):
        engine.score(views_of(engine), "reference")


@pytest.mark.parametrize("peft", [None, PeftSection(r=2, alpha=4)])
def test_saved_state_continues_bit_for_bit(tmp_path, peft):
    optim = OptimSection(batch_size=6, lr=0.05, schedule="cosine", warmup_steps=2, weight_decay=0.1)
    algorithm = ClippedRatio(RatioSection())

    def steps(engine, count):
        return [update(engine, toy_objective(engine, algorithm), "two-pass").loss.loss.item() for _ in range(count)]

    whole = toy_engine(30, peft=peft, optim=optim)
    losses = steps(whole, 5)
    first = toy_engine(30, peft=peft, optim=optim)
    begun = steps(first, 2)
    first.save(tmp_path / "trainer")
    second = toy_engine(30, peft=peft, optim=optim)
    second.load(tmp_path / "trainer")
    assert begun + steps(second, 3) == losses
    for a, b in zip(whole.adapter.module.parameters(), second.adapter.module.parameters(), strict=True):
        assert torch.equal(a, b)
    for name in ("forwards", "forward_tokens", "backward_tokens"):
        assert second.counters()[name] == whole.counters()[name]


def test_state_of_another_model_is_refused(tmp_path):
    toy_engine(peft=PeftSection(r=2)).save(tmp_path)
    with pytest.raises(UserError, match="saved and present trainable parameters differ"):
        toy_engine().load(tmp_path)


class DroppingToy(ToyMasked):
    """A toy whose bias is dropped out while training."""

    def __init__(self) -> None:
        super().__init__(8, 16, seed=1)
        self.module.drop = nn.Dropout(0.5)

    def token_logp(self, views, *, entropy=False):
        scores = super().token_logp(views, entropy=entropy)
        return replace(scores, logp=self.module.drop(scores.logp))


@pytest.mark.parametrize("mode", ["auto", "two-pass"])
def test_dropout_is_refused_where_two_passes_may_be_taken(mode):
    with pytest.raises(UserError, match=r"engine\.update: dropout in 1 modules \(first: 'drop'\).*set dropout to 0"):
        toy_engine(adapter=DroppingToy(), update=mode)


def test_dropout_in_one_pass_follows_from_its_address_and_leaves_global_state_alone():
    before = torch.get_rng_state()
    found = []
    for _ in range(2):
        engine = toy_engine(30, adapter=DroppingToy(), update="direct")
        torch.rand(3)
        objective = toy_objective(engine, ClippedRatio(RatioSection()))
        state = torch.get_rng_state()
        update(engine, objective, "direct")
        assert torch.equal(torch.get_rng_state(), state)
        found.append(engine.adapter.module.bias.detach().clone())
    torch.set_rng_state(before)
    assert torch.equal(*found)


def test_activation_checkpointing_changes_no_gradient_and_names_missing_layers():
    class Net(ToyMasked):
        wrap_units = ("ToyModule",)

    found = []
    for on in (False, True):
        toy = Net(8, 16, seed=1)
        engine = toy_engine(40, adapter=toy, activation_checkpointing=False)
        if on:
            holder = nn.ModuleDict({"inner": toy.module})
            from dare_core.engine.activations import checkpoint_activations

            checkpoint_activations(holder, Net.wrap_units)
        objective = toy_objective(engine, ClippedRatio(RatioSection()))
        engine.accumulate(objective.views, Scores(logp=objective.views.weight.double()))
        found.append(gradients(engine))
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name])
    with pytest.raises(UserError, match=r"engine\.activation_checkpointing: this model has no layer of class"):
        toy_engine(activation_checkpointing=True)


def test_noise_of_a_row_does_not_depend_on_its_neighbours():
    engine = toy_engine()
    from tests.executor.toy_training import MaskSection, RandomMasks

    estimator, rows = RandomMasks(MaskSection()), toy_rows()
    whole = estimator.plan(rows, toy_context(engine))
    index = torch.tensor([4])
    picked = {name: getattr(rows, name)[index] for name in ("tokens", "prompt", "response", "completion")}
    alone = replace(rows, **picked, sample_id=rows.sample_id[index], group=rows.group[index], example_id=("x",))
    assert torch.equal(estimator.plan(alone, toy_context(engine)).inputs, whole.inputs[whole.row == 4])
