"""Replaying traces: CJ-GRPO's block form, TraceRL's losses, value estimates along a trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.executor.policy_objectives import SCORES, drifted, loss_and_gradient, objective_of, toy_rollout
from tests.executor.toy_runs import TOYS, metrics_of, online_spec, write_spec
from tests.executor.toy_training import gradients, toy_engine
from tests.made_inputs import loss_inputs, verdicts_of

from dare_algos_grpo.cj_grpo import CjGrpo
from dare_algos_grpo.config import CjGrpoSection, TraceRlSection, TrajectorySection
from dare_algos_grpo.estimators.trajectory import Trajectory
from dare_algos_grpo.tracerl import TraceRl
from dare_algos_grpo.transitions import Transitions
from dare_core.diffusion.canvas import aligned_new_tokens
from dare_core.interfaces import Objective, PlanContext, RolloutRequest
from dare_core.loops.update import replay
from dare_core.objectives.gae import clipped_value_loss, trace_advantages
from dare_core.objectives.reductions import step_mean, transition_weights
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.spec.sections import OptimSection
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Address, AttentionLayout, DecodingSettings, Progress, Prompt, Rollout

BLOCK = AttentionLayout("block", 3)


def block_rollout(adapter: ToyBlock, steps: int = 2) -> Rollout:
    request = RolloutRequest(
        prompts=[Prompt(id="p", index=0, text="ab"), Prompt(id="q", index=1, text="bcd")],
        samples=3,
        settings=DecodingSettings(new_tokens=7, block_length=3, steps_per_block=steps, temperature=1.0),
        address=Address(3, "rollout", 0),
    )
    return NativeBackend(NativeSection(new_tokens=7), adapter).generate(request)


def block_objective(adapter: ToyBlock, algorithm, rollout: Rollout) -> Objective:
    estimator = Trajectory(TrajectorySection())
    context = PlanContext(facts=adapter.facts, address=Address(7, "corruption", 0), layout=BLOCK)
    views = estimator.plan(rollout, context)
    live = estimator.reduce(views, adapter.token_logp(views), rollout).detached()
    wave = 0.3 * torch.sin(torch.arange(live.value.numel(), dtype=torch.float64)).reshape(live.value.shape)
    return Objective(
        estimator=estimator,
        algorithm=algorithm,
        rows=rollout,
        views=views,
        progress=Progress(0, 1),
        advantages=algorithm.advantages(rollout, verdicts_of(SCORES)),
        old=replace(live, value=live.value + wave * live.mask),
        reference=live,
    )


ON_BLOCKS = {
    "cj-grpo": CjGrpo(CjGrpoSection()),
    "cj-grpo-transitions": CjGrpo(CjGrpoSection(reduction="transition-mean")),
    "tracerl": TraceRl(TraceRlSection(mean_reward_range=None, fail_overlong=False)),
}


@pytest.mark.parametrize("name", ON_BLOCKS)
@pytest.mark.parametrize("budget", [1, 50])
def test_two_passes_on_block_views_give_the_gradient_of_one(name, budget):
    adapter = ToyBlock(8, 12, seed=4, block_length=3)
    engine = toy_engine(budget, adapter=adapter, optim=OptimSection(batch_size=6, clip_norm=None))
    objective = block_objective(adapter, ON_BLOCKS[name], block_rollout(adapter))
    _, wanted = loss_and_gradient(objective, adapter)
    replay(engine, objective, engine.score(objective.views, "live"))
    found = gradients(engine)
    for (parameter, _), want in zip(adapter.module.named_parameters(), wanted, strict=True):
        torch.testing.assert_close(found[parameter], want)


def test_transition_weights_sum_to_one_per_row_however_views_are_split():
    adapter = ToyBlock(8, 12, seed=4, block_length=3)
    rollout = block_rollout(adapter)
    objective = block_objective(adapter, ON_BLOCKS["cj-grpo-transitions"], rollout)
    views = objective.views
    transition = Transitions.of(views).transition
    weight = transition_weights(views.scored, transition, views.row, 6)
    torch.testing.assert_close(
        torch.zeros(6, dtype=torch.float64).index_add(0, views.row, weight.sum(dim=1)),
        torch.ones(6, dtype=torch.float64),
    )
    for row in range(6):
        mine = views.row == row
        alone = transition_weights(views.scored[mine], transition[mine], views.row[mine] * 0, 1)
        torch.testing.assert_close(weight[mine], alone)


def test_slices_of_transitions_add_up_to_the_transition_wise_mean():
    adapter = ToyBlock(8, 12, seed=4, block_length=3)
    rollout = block_rollout(adapter)
    objective = block_objective(adapter, ON_BLOCKS["cj-grpo-transitions"], rollout)
    views = objective.views
    value = torch.sin(torch.arange(views.scored.numel(), dtype=torch.float64)).reshape(views.scored.shape)
    weight = transition_weights(views.scored, Transitions.of(views).transition, views.row, 6)
    by_hand = []
    for row in range(6):
        step = rollout.trace.commit_step[row]
        table = torch.zeros(step.shape, dtype=torch.float64).index_add(
            0,
            torch.arange(len(step)).repeat(int((views.row == row).sum())),
            (value * views.scored)[views.row == row].flatten(),
        )
        by_hand.append(torch.stack([table[step == k].mean() for k in range(int(step.max()) + 1)]).mean())
    torch.testing.assert_close((weight * value).sum() / 6, torch.stack(by_hand).mean())


def test_the_steps_of_block_views_are_those_of_the_trace():
    adapter = ToyBlock(8, 12, seed=4, block_length=3)
    rollout = block_rollout(adapter, steps=1)
    views = block_objective(adapter, ON_BLOCKS["cj-grpo"], rollout).views
    steps = Transitions.of(views).step[views.scored]
    assert torch.equal(steps, rollout.trace.commit_step[views.row][views.scored])


def test_a_step_mean_counts_steps_of_entries_as_of_lines():
    mask = torch.tensor([[True, True, False], [False, True, True]])
    values = torch.tensor([[1.0, 3.0, float("nan")], [9.0, 5.0, 7.0]])
    by_line = step_mean(values, mask, torch.tensor([0, 1]))
    by_entry = step_mean(values, mask, torch.tensor([[0, 0, 0], [1, 1, 1]]))
    assert by_line == by_entry == 4.0
    assert step_mean(values, mask, torch.tensor([[0, 1, 2], [0, 1, 2]])) == pytest.approx((1 + 4 + 7) / 3)


def test_an_editing_decoder_is_refused_before_loading(tmp_path):
    with installed(tmp_path / "site", TOYS):
        spec = online_spec(
            algorithm={"kind": "cj-grpo", "group_size": 4},
            model__kind="toy-block",
            rollout__selection={"kind": "joint-threshold"},
        )
        spec["model"]["config"]["block_length"] = 3
        write_spec(tmp_path, spec)
        result = run_dare_here("validate", "spec.yaml", folder=tmp_path)
    assert result.code == 2
    assert "joint-threshold" in result.stderr
    assert "replaces committed tokens" in result.stderr


@pytest.mark.parametrize(
    ("kind", "model"), [("cj-grpo", "toy-block"), ("tracerl", "toy-block"), ("tracerl", "toy-masked")]
)
def test_a_run_replays_its_trace(tmp_path, kind, model):
    with installed(tmp_path / "site", TOYS):
        options = {"mean_reward_range": None} if kind == "tracerl" else {}
        algorithm = {"kind": kind, "group_size": 4, "inner_updates": 1, **options}
        spec = online_spec(algorithm=algorithm, model__kind=model, run__steps=3)
        if model == "toy-block":
            spec["model"]["config"]["block_length"] = 3
        write_spec(tmp_path, spec)
        result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 0, result.stderr
    assert metrics_of(tmp_path / "runs/toy")[-1]["algorithm/ratio"] == pytest.approx(1.0)


def test_views_with_more_tokens_weigh_the_same_in_masked_and_more_in_block_models():
    mask = torch.tensor([[True, True, True, False], [False, False, False, True]])

    def gradient(reduction: str) -> torch.Tensor:
        inputs = loss_inputs(
            torch.zeros(2, 4, requires_grad=True),
            advantages=torch.tensor([1.0]),
            row=torch.tensor([0, 0]),
            step=torch.tensor([0, 1]),
            mask=mask,
        )
        loss = TraceRl(TraceRlSection(reduction=reduction)).loss(inputs).loss
        return torch.autograd.grad(loss, inputs.live.value)[0]

    torch.testing.assert_close(gradient("view-mean"), -mask.float() / torch.tensor([[6.0], [2.0]]))
    torch.testing.assert_close(gradient("view-length"), -mask.float() / 8)
    torch.testing.assert_close(gradient("by-layout"), gradient("view-mean"))


def test_an_answer_without_an_end_token_counts_as_wrong():
    rollout = replace(toy_rollout(), finish=("eos", "length", "eos", "eos", "length", "eos"))
    found = TraceRl(TraceRlSection(mean_reward_range=None)).advantages(rollout, verdicts_of([1, 1, 0, 0, 0, 1]))
    torch.testing.assert_close(found.value, torch.tensor([1.0, -1.0, 0.0, 0.0, -1.0, 1.0]))
    lenient = TraceRl(TraceRlSection(mean_reward_range=None, fail_overlong=False))
    assert lenient.advantages(rollout, verdicts_of([1, 1, 0, 0, 0, 1])).value[:2].tolist() == [0.0, 0.0]


def test_the_kl_term_keeps_near_the_old_or_the_reference_policy():
    adapter = ToyMasked(8, 16, seed=1)
    policies = {"old": drifted(adapter, 0.3), "reference": adapter}

    def kl(**options) -> float:
        objective = objective_of("tracerl", adapter, toy_rollout(), SCORES, **policies, **options)
        return loss_and_gradient(objective, adapter)[0].metrics["kl"].value

    assert kl() > 0
    assert kl(kl_to="reference") == pytest.approx(0.0)
    assert not TraceRl(TraceRlSection()).uses_reference
    assert TraceRl(TraceRlSection(kl_to="reference")).uses_reference


def test_undiscounted_returns_are_the_reward_and_advantages_what_the_value_missed():
    row, step = torch.tensor([0, 0, 1]), torch.tensor([[0, 0, 2], [0, 0, 2], [1, 1, 5]])
    mask = torch.tensor([[True, True, False], [False, False, True], [True, False, True]])
    value = torch.arange(9, dtype=torch.float64).view(3, 3)
    advantages, returns = trace_advantages(torch.tensor([1.0, -2.0]), value, mask, step, row)
    expected = torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64)[:, None] * mask
    torch.testing.assert_close(returns, expected)
    # Step means stand for what follows, so a token misses its own value only within a step of one token.
    torch.testing.assert_close(advantages[2], (expected - value)[2] * mask[2])
    torch.testing.assert_close(advantages[1], (expected - value)[1] * mask[1])


def test_a_value_far_from_the_old_one_is_held_to_the_clipped_loss():
    loss = clipped_value_loss(torch.tensor([0.5, 2.0]), torch.zeros(2), torch.tensor([1.0, 2.0]), 0.2)
    torch.testing.assert_close(loss, torch.tensor([0.8**2 / 2, 1.8**2 / 2]))


def test_budgets_end_with_a_whole_block():
    assert [aligned_new_tokens(length, 16, 4) for length in (5, 3, 4)] == [15, 13, 16]
    assert aligned_new_tokens(5, 2, 8) == 0
