"""A value model beside the policy: scored, trained, saved and exported by the same machinery."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.executor.families import FAMILIES
from tests.executor.policy_objectives import SCORES, toy_rollout
from tests.executor.test_every_pair_trains import spec_of
from tests.executor.toy_runs import TOYS, metrics_of, online_spec, write_spec
from tests.executor.toy_training import gradients, toy_engine
from tests.made_inputs import verdicts_of

from dare_algos_grpo.config import TraceRlSection, TrajectorySection
from dare_algos_grpo.estimators.trajectory import Trajectory
from dare_algos_grpo.tracerl import TraceRl
from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.interfaces import ModelAdapter
from dare_core.loops.inner import InnerUpdates, Learner
from dare_core.loops.update import replay
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import FakeDistribution, installed
from dare_core.testing.toy_models import ToyBlock, ToyMasked

CATALOG = Catalog.load()
FAMILY = {
    family.kind: family
    for family in FAMILIES
    if "value-head" in CATALOG.find(Slot.MODEL, family.kind).component.provides
}
TOY = {"masked": ToyMasked, "block": ToyBlock}
kinds = pytest.mark.parametrize("kind", TOY)


def learner_of(kind, budget=100_000, *, mode="auto", head=0.0, **value):
    """A policy and a value model whose head's weights grow by ``head``."""
    critic = TOY[kind](8, 16, seed=5)
    critic.attach_value_head()
    with torch.no_grad():
        critic.module.value_head.copy_(head * torch.arange(7, dtype=torch.float64))
    policy = toy_engine(budget, adapter=TOY[kind](8, 16, seed=1))
    options = {"mean_reward_range": None, "fail_overlong": False, "inner_updates": 2}
    return Learner(
        algorithm=TraceRl(TraceRlSection(**options, value_model=value)),
        estimator=Trajectory(TrajectorySection()),
        engine=policy,
        facts=policy.adapter.facts,
        layout=policy.adapter.facts.layout,
        seed=7,
        total_steps=10,
        mode=mode,
        value_engine=toy_engine(budget, adapter=critic),
    )


def inner_of(learner, scores=SCORES):
    rollout = toy_rollout()
    return InnerUpdates(learner, rollout, 0, learner.algorithm.advantages(rollout, verdicts_of(scores)))


@kinds
@pytest.mark.parametrize("budget", [1, 40, 100_000])
def test_two_passes_give_the_value_losss_gradient_of_one(kind, budget):
    plain = learner_of(kind, head=0.1)
    objective = replace(next(inner_of(plain).objectives()), role="value")
    # Values that moved on both sides of the clip range.
    moved = replace(
        objective,
        values=objective.values
        + torch.sin(torch.arange(objective.values.numel()).double()).view_as(objective.values) * objective.views.scored,
    )
    engine = plain.value_engine
    moved(engine.adapter.token_logp(moved.views)).loss.backward()
    wanted = gradients(engine)
    assert all(gradient.abs().sum() > 0 for gradient in wanted.values())
    for way in ("two-pass", "direct"):
        other = learner_of(kind, budget, head=0.1).value_engine
        if way == "two-pass":
            replay(other, moved, other.score(moved.views, "live"))
        else:
            parts = [(moved.views.row == row).nonzero()[:, 0] for row in moved.views.row.unique()]
            other.accumulate_direct(moved.views, moved, parts)
        for name, gradient in wanted.items():
            torch.testing.assert_close(gradients(other)[name], gradient, rtol=1e-11, atol=1e-13)


@kinds
def test_a_value_model_that_says_nothing_leaves_the_policys_step_as_it_was(kind):
    # gamma = lambda = 1 and V = 0: every token's advantage is the row's.
    with_value, without = learner_of(kind), learner_of(kind)
    without = replace(
        without, value_engine=None, algorithm=TraceRl(without.algorithm.config.model_copy(update={"value_model": None}))
    )
    for learner in (with_value, without):
        inner = inner_of(learner)
        inner.done(learner.update(next(inner.objectives())))
    for mine, other in zip(
        with_value.engine.adapter.module.parameters(), without.engine.adapter.module.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@kinds
@pytest.mark.parametrize("mode", ["two-pass", "direct"])
def test_values_equal_the_old_ones_at_the_first_inner_update_and_move_after_it(kind, mode):
    learner = learner_of(kind, mode=mode, head=0.1)
    inner = inner_of(learner)
    seen = []
    for objective in inner.objectives():
        done = learner.update(objective)
        inner.done(done)
        seen.append((objective.values, done.value.scores.value))
    assert torch.equal(seen[0][0], seen[0][1])
    assert torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(seen[1][0], seen[1][1])
    errors = [done.value.loss.metrics["squared_error"].value for done in inner.results]
    assert errors[1] < errors[0]


def test_two_passes_score_a_value_model_once_before_the_first_update():
    learner = learner_of("masked", mode="two-pass", head=0.1)
    inner = inner_of(learner)
    objective = next(inner.objectives())
    learner.update(objective)
    # Once for the old values, once with gradient where a trained token is scored.
    assert len(objective.views) < learner.value_engine.counters()["forwards"] <= 2 * len(objective.views)


@kinds
def test_the_policy_gradient_follows_tokens_that_did_better_than_expected(kind):
    learner = learner_of(kind, head=0.1, gamma=0.9, lam=0.5)
    objective = next(inner_of(learner).objectives())
    advantages, returns = learner.algorithm._along_trace(objective, objective.values, objective.views.scored)
    rows = objective.advantages.value
    last = torch.zeros(len(rows))
    for view in range(len(objective.views)):
        last[objective.views.row[view]] = max(last[objective.views.row[view]], objective.views.draw[view])
    # At a row's last step the return is its reward; in earlier steps of a masked model it is discounted.
    if kind == "masked":
        for view, row in enumerate(objective.views.row.tolist()):
            back = float(last[row] - objective.views.draw[view])
            mine = objective.views.scored[view]
            expected = float(rows[row]) * 0.9**back
            torch.testing.assert_close(returns[view][mine], torch.full((int(mine.sum()),), expected).double())
    assert not torch.equal(advantages, returns)


def test_failed_verdicts_carry_no_value_loss():
    learner = learner_of("masked", head=0.1)
    whole = replace(next(inner_of(learner, [*SCORES[:4], None, None]).objectives()), role="value")
    scores = learner.value_engine.score(whole.views, "live").leaves()
    whole(scores).loss.backward()
    slope = scores.gradients().value
    failed = whole.views.row >= 4
    assert not slope[failed].any()
    assert slope[~failed].any()


def test_a_family_without_a_value_head_says_so():
    toy = ToyMasked(8, 12)
    with pytest.raises(Exception, match="models of kind 'toy-masked' carry no value head"):
        ModelAdapter.attach_value_head(toy)


# -- families ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: family.write(tmp_path_factory.mktemp(kind) / "model") for kind, family in FAMILY.items()}


def value_adapter(kind, folder, **section):
    adapter = FAMILY[kind].load(folder, **section)
    adapter.attach_value_head()
    return adapter


@pytest.mark.parametrize("kind", FAMILY)
def test_every_family_trains_a_value_model_for_three_steps_by_either_update(kind, folders, tmp_path):
    metrics = {}
    for mode in ("two-pass", "direct"):
        folder = tmp_path / mode
        folder.mkdir()
        spec = spec_of("tracerl", folders[kind])
        spec["algorithm"] |= {"value_model": {"lr": 1e-2}, "inner_updates": 2}
        spec["engine"] = {"update": mode}
        rows = [{"id": f"r{i}", "q": f"{i}+{i}=", "a": f"{2 * i} ", "b": "no"} for i in range(4)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
        steps = "3" if mode == "two-pass" else "1"
        result = run_dare_here("run", "spec.yaml", "--to-step", steps, folder=folder)
        assert result.code == 0, result.stderr
        metrics[mode] = metrics_of(folder / "runs/tiny")
    first = metrics["two-pass"]
    assert len(first) == 3
    assert all(math.isfinite(step["value/loss"]) and step["value/lr"] == 1e-2 for step in first)
    assert any(step["value/grad_norm"] > 0 for step in first)
    assert any(step["value/mean"] != 0 for step in first)
    for name in ("loss", "value/loss", "value/grad_norm"):
        assert metrics["direct"][0][name] == pytest.approx(first[0][name], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("kind", FAMILY)
def test_a_saved_value_model_is_read_back_with_its_head(kind, folders, tmp_path):
    adapter = value_adapter(kind, folders[kind])
    torch.nn.init.normal_(adapter.module.value_head.weight, generator=torch.Generator().manual_seed(1))
    adapter.save(tmp_path / "saved")
    again = value_adapter(kind, tmp_path / "saved")
    assert torch.equal(again.module.value_head.weight, adapter.module.value_head.weight)
    assert FAMILY[kind].load(tmp_path / "saved").module.lm_head.weight.shape[0] > 1


def test_a_head_of_another_width_is_refused_by_name(folders, tmp_path):
    adapter = value_adapter("llada", folders["llada"])
    adapter.save(tmp_path / "saved")
    from safetensors.torch import save_file

    save_file({"value_head.weight": torch.zeros(1, 3)}, tmp_path / "saved/value_head.safetensors")
    with pytest.raises(Exception, match=r"'value_head.weight' must have shape \(1, \d+\), found \(1, 3\)"):
        value_adapter("llada", tmp_path / "saved")


# -- runs --------------------------------------------------------------------------------------------


PLAIN = FakeDistribution(
    name="dare-plain",
    source="""
from dare_core.api import Component, hookimpl


@hookimpl
def dare_model_adapters():
    return [
        Component(
            kind="plain",
            target="dare_core.testing.toy_models:ToyMasked",
            config="dare_core.testing.toy_config:ToyMaskedSection",
            summary="a family without a value head",
            provides=frozenset({"masked", "token-logp", "mask-token"}),
        )
    ]
""",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("site"), TOYS, PLAIN) as folder:
        yield folder


def value_spec(**changes):
    algorithm = {
        "kind": "tracerl",
        "group_size": 4,
        "mean_reward_range": None,
        "fail_overlong": False,
        "inner_updates": 2,
        "value_model": {"lr": 0.1, "gamma": 0.9, "lam": 0.8},
    }
    # Six denoising forwards would not divide what the algorithm wishes for.
    return online_spec(
        run__steps=6,
        run__save_every=2,
        run__keep_checkpoints=9,
        algorithm=algorithm,
        rollout__eos_rule="fill",
        rollout__selection={"kind": "entropy"},
        **changes,
    )


@pytest.mark.parametrize("peft", [None, {"kind": "lora", "r": 2, "alpha": 4}])
def test_a_run_with_a_value_model_resumes_bit_for_bit(tmp_path, site, peft):
    for folder in ("whole", "parts"):
        write_spec(tmp_path / folder, value_spec(peft=peft))
    assert run_dare_here("run", "spec.yaml", folder=tmp_path / "whole").code == 0
    assert run_dare_here("run", "spec.yaml", "--to-step", "4", folder=tmp_path / "parts").code == 0
    result = run_dare_here("resume", "runs/toy", folder=tmp_path / "parts")
    assert result.code == 0, result.stderr
    whole, parts = tmp_path / "whole/runs/toy", tmp_path / "parts/runs/toy"
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    for name in ("weights", "optimizer"):
        first, second = (
            load_file(run / f"checkpoints/step_6/trainer/value/{name}.safetensors") for run in (whole, parts)
        )
        assert first
        assert all(torch.equal(first[key], second[key]) for key in first)
    ledgers = [json.loads((run / "ledger.json").read_text()) for run in (whole, parts)]
    assert ledgers[0]["backward_tokens"] == ledgers[1]["backward_tokens"]
    assert json.loads((whole / "manifest.json").read_text())["model"]["value_model"]["kind"] == "toy-masked"


def test_checkpoints_hold_no_value_model_beyond_the_trainers_state(tmp_path, site):
    write_spec(tmp_path, value_spec())
    assert run_dare_here("run", "spec.yaml", "--to-step", "2", folder=tmp_path).code == 0
    checkpoint = tmp_path / "runs/toy/checkpoints/step_2"
    assert sorted(path.name for path in checkpoint.iterdir()) == ["complete.json", "model", "trainer"]
    assert "value_head" in load_file(checkpoint / "trainer/value/weights.safetensors")
    assert load_file(checkpoint / "model/model.safetensors").keys() == {"bias", "table"}


@pytest.mark.parametrize("peft", [None, {"kind": "lora", "r": 2, "alpha": 4}])
def test_a_value_model_is_exported_when_asked_for(tmp_path, site, peft):
    write_spec(tmp_path, value_spec(peft=peft))
    assert run_dare_here("run", "spec.yaml", "--to-step", "2", folder=tmp_path).code == 0
    result = run_dare_here("export", "runs/toy", "--value-model", "-o", "out", folder=tmp_path)
    assert result.code == 0, result.stderr
    assert result.stdout == "value model of step 2 written to out\n"
    trained = load_file(tmp_path / "runs/toy/checkpoints/step_2/trainer/value/weights.safetensors")
    head = load_file(tmp_path / "out/value_head.safetensors")["value_head.weight"][0]
    assert torch.equal(head, trained["value_head"])
    policy = load_file(tmp_path / "runs/toy/checkpoints/step_2/trainer/weights.safetensors")
    exported = load_file(tmp_path / "out/model.safetensors")
    if peft is None:
        assert torch.equal(exported["table"], trained["table"])
        assert not torch.equal(exported["table"], policy["table"])


def test_a_run_without_a_value_model_has_none_to_export(tmp_path, site):
    write_spec(tmp_path, online_spec(run__steps=1))
    assert run_dare_here("run", "spec.yaml", folder=tmp_path).code == 0
    result = run_dare_here("export", "runs/toy", "--value-model", "-o", "out", folder=tmp_path)
    assert result.code == 2
    assert "no value model was trained here" in result.stderr


def test_a_misspelt_option_of_the_value_model_is_named(tmp_path, site):
    spec = value_spec()
    spec["algorithm"]["value_model"] = {"learning_rate": 1}
    result = run_dare_here("validate", str(write_spec(tmp_path, spec)), folder=tmp_path)
    assert result.code == 2
    assert "algorithm.value_model.learning_rate" in result.stderr


def test_a_missing_folder_of_the_value_model_is_named_before_anything_is_loaded(tmp_path, site):
    spec = value_spec()
    spec["algorithm"]["value_model"] = {"path": "nowhere"}
    result = run_dare_here("validate", str(write_spec(tmp_path, spec)), folder=tmp_path)
    assert result.code == 2
    assert f"algorithm.value_model.path: no such folder: {tmp_path / 'nowhere'}" in result.stderr


def test_a_model_that_carries_no_value_head_is_refused_before_it_is_loaded(tmp_path, site):
    spec = value_spec(model__kind="plain")
    result = run_dare_here("validate", str(write_spec(tmp_path, spec)), folder=tmp_path)
    assert result.code == 2
    assert "algorithm 'tracerl' needs 'value-head'" in result.stderr
    spec["algorithm"]["value_model"] = None
    assert run_dare_here("validate", str(write_spec(tmp_path, spec)), folder=tmp_path).code == 0
