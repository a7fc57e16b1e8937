"""d-TreeRPO on a toy: values of trees, what must hold whatever the numbers, self-distillation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.executor.policy_objectives import drifted, loss_and_gradient, loss_inputs_of
from tests.executor.test_tree_rollouts import grown
from tests.executor.toy_runs import TOYS, metrics_of, online_spec, write_spec
from tests.executor.toy_training import gradients, toy_engine, toy_rows
from tests.made_inputs import rollout_of, verdicts_of

from dare_algos_grpo.config import DTreeRpoSection, SnapshotsSection
from dare_algos_grpo.dtreerpo import Distillation, DTreeRpo
from dare_algos_grpo.estimators.snapshots import StepGuesses
from dare_core.errors import UserError
from dare_core.interfaces import Objective, PlanContext
from dare_core.loops.update import replay
from dare_core.objectives.trees import depths, node_values, sibling_groups
from dare_core.spec.sections import OptimSection
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import Address, Progress

TREE = {"group_size": 4, "root_branches": 2, "branches": 2, "levels": 2}
SCORES = [1.0, 0.0, 0.25, 0.25, 0.0, 1.0, 0.5, 0.75]


@pytest.fixture
def adapter() -> ToyMasked:
    return ToyMasked(8, 12, seed=4)


def objective_of(adapter, scores=SCORES, *, old=None, reference=None, done=0, **options) -> Objective:
    algorithm = DTreeRpo(DTreeRpoSection(**TREE, **options))
    rollout = grown(adapter, algorithm.tree)
    estimator = StepGuesses(SnapshotsSection(temperature=1.0, scored_tokens="completion"))
    context = PlanContext(facts=adapter.facts, address=Address(7, "corruption", 0), layout=adapter.facts.layout)
    views = estimator.plan(rollout, context)

    def estimate(policy):
        return None if policy is None else estimator.reduce(views, policy.token_logp(views), rollout).detached()

    return Objective(
        estimator=estimator,
        algorithm=algorithm,
        rows=rollout,
        views=views,
        progress=Progress(done, 100),
        advantages=algorithm.advantages(rollout, verdicts_of(scores)),
        old=estimate(old),
        reference=estimate(reference),
    )


def test_a_node_is_worth_the_mean_of_its_judged_children():
    parent = torch.tensor([-1, 0, 0, 1, 1, 2, 2])
    leaf = torch.tensor([9.0, 9.0, 9.0, 1.0, 0.0, 0.5, torch.nan])
    assert node_values(leaf, parent).tolist()[:3] == [0.5, 0.5, 0.5]
    nothing = node_values(torch.full((7,), torch.nan), parent)
    assert nothing.isnan().all()
    assert depths(parent).tolist() == [0, 1, 1, 2, 2, 2, 2]


def test_roots_are_siblings_within_a_prompt_only():
    groups = sibling_groups(torch.tensor([-1, -1, -1, 0, 0, 2]), torch.tensor([5, 5, 9, 5, 5, 9]))
    assert (groups[:, None] == groups).tolist() == torch.block_diag(
        torch.ones(2, 2), torch.ones(1, 1), torch.ones(2, 2), torch.ones(1, 1)
    ).bool().tolist()


def test_two_siblings_have_opposite_advantages_and_the_roots_mean_is_the_leaves(adapter):
    objective = objective_of(adapter)
    snapshots, value = objective.rows.trace.snapshots, objective.advantages.value
    groups = sibling_groups(snapshots.parent, objective.rows.group[snapshots.row])
    for group in groups.unique():
        first, second = value[groups == group]
        assert first == -second
    # First prompt: leaves 1, 0 | .25, .25; second prompt: 0, 1 | .5, .75.
    roots = value[snapshots.parent < 0]
    torch.testing.assert_close(roots, torch.tensor([0.25, -0.25, -0.125, 0.125]))


def test_a_segment_without_a_judged_leaf_carries_no_loss(adapter):
    objective = objective_of(adapter, [1.0, 0.0, None, None, *SCORES[4:]])
    snapshots, usable = objective.rows.trace.snapshots, objective.advantages.usable
    assert sorted(snapshots.row[~usable].tolist()) == [2, 2, 3]
    scores = adapter.token_logp(objective.views).leaves()
    objective(scores).loss.backward()
    assert (scores.logp.grad[~usable] == 0).all()
    assert (scores.logp.grad[usable] != 0).any()


def test_the_first_update_has_ratio_one_and_the_loss_is_minus_the_mean_advantage(adapter):
    objective = objective_of(adapter, reference=adapter)
    out, _ = loss_and_gradient(objective, adapter)
    trains = objective.views.scored.any(dim=1)
    assert float(out.loss.detach()) == pytest.approx(-float(objective.advantages.value[trains].mean()), abs=1e-6)
    assert out.metrics["ratio"].value == 1.0
    assert out.metrics["kl"].value == 0.0


def test_equal_rewards_give_no_gradient_without_kl(adapter):
    out, found = loss_and_gradient(objective_of(adapter, [0.5] * 8, kl_weight=0.0, done=50), adapter)
    assert float(out.loss.detach()) == 0.0
    assert all(torch.equal(g, torch.zeros_like(g)) for g in found)


@pytest.mark.parametrize("budget", [1, 40, 1000])
def test_two_passes_give_the_gradient_of_one_with_distillation(adapter, budget):
    policies = {"old": drifted(adapter, 0.3), "reference": drifted(adapter, -0.2)}
    objective = objective_of(adapter, **policies, done=40, distill_steps=100, distill_weight=0.5)
    out, wanted = loss_and_gradient(objective, adapter)
    assert "self_distillation" in out.metrics
    engine = toy_engine(budget, adapter=adapter, optim=OptimSection(batch_size=8, clip_norm=None))
    replay(engine, objective, engine.score(objective.views, "live"))
    for (name, _), want in zip(adapter.module.named_parameters(), wanted, strict=True):
        torch.testing.assert_close(gradients(engine)[name], want)


def test_trees_of_a_batch_share_no_term(adapter):
    objective = objective_of(adapter, done=40, distill_steps=100, distill_weight=0.5)
    scores = adapter.token_logp(objective.views).leaves()
    objective(scores).loss.backward()
    changed = replace(scores.detached(), logp=scores.logp.detach().clone())
    mine = objective.rows.group[objective.views.row] == 0
    changed.logp[~mine] -= 0.1
    again = changed.leaves()
    objective(again).loss.backward()
    torch.testing.assert_close(again.logp.grad[mine], scores.logp.grad[mine])


def test_self_distillation_is_the_distance_to_what_good_siblings_chose(adapter):
    """By hand: at each position of a parent, q weighs the tokens of its good children; SD = sum q (log q - log p)."""
    objective = objective_of(adapter)
    algorithm, temperature = objective.algorithm, 0.7
    scores = adapter.token_logp(objective.views)
    inputs = loss_inputs_of(objective, scores)
    found, cells = algorithm.self_distillation(inputs, temperature)
    snapshots, advantage = objective.rows.trace.snapshots, objective.advantages.value
    groups = sibling_groups(snapshots.parent, objective.rows.group[snapshots.row])
    terms = []
    for group in groups.unique():
        good = [s for s in (groups == group).nonzero()[:, 0].tolist() if advantage[s] > 0]
        for column in range(objective.rows.tokens.shape[1]):
            here = [s for s in good if objective.views.scored[s, column]]
            if not here:
                continue
            weights = torch.tensor([math.exp(float(advantage[s]) / temperature) for s in here])
            share: dict[int, float] = {}
            logp: dict[int, float] = {}
            for s, w in zip(here, (weights / weights.sum()).tolist(), strict=True):
                token = int(objective.views.targets[s, column])
                share[token] = share.get(token, 0.0) + w
                logp[token] = float(scores.logp[s, column].detach())
            terms.append(sum(q * (math.log(q + 1e-8) - logp[token]) for token, q in share.items()))
    assert cells == len(terms) > 0
    assert float(found.detach()) == pytest.approx(sum(terms) / len(terms), abs=1e-6)


def test_distillation_grows_and_sharpens_over_the_run():
    section = DTreeRpoSection(distill_steps=100)
    start, middle, end = (Distillation.at(section, Progress(step, 100, 0, 1)) for step in (0, 50, 200))
    assert (start.weight, start.temperature) == (0.0, 2.0)
    assert middle.weight == pytest.approx(3e-3 * (math.e - 1) / (math.e**2 - 1))
    assert middle.temperature == pytest.approx(2 * 0.5**0.7)
    assert (end.weight, end.temperature) == (pytest.approx(3e-3), 1e-6)
    # Inner updates count: the schedule runs over optimizer steps.
    assert Distillation.at(section, Progress(4, 10, 2, 12)).weight == Distillation.at(section, Progress(50, 99)).weight


def test_rollouts_that_do_not_branch_are_refused(adapter):
    rows = toy_rows()
    algorithm = DTreeRpo(DTreeRpoSection(**TREE))
    with pytest.raises(UserError, match="single denoising forwards"):
        algorithm.advantages(rollout_of(rows, torch.zeros_like(rows.tokens)), verdicts_of([0.0] * 6))


def test_a_group_size_that_is_not_the_number_of_leaves_is_refused_with_the_right_one():
    with pytest.raises(ValueError, match="group_size 8 must be the number of leaves, 16"):
        DTreeRpoSection(group_size=8)


def tree_spec(**changes):
    algorithm = {"kind": "d-treerpo", **TREE, "inner_updates": 2, "distill_steps": 4}
    return online_spec(algorithm=algorithm, run__steps=3, rollout__eos_rule="fill", **changes)


def test_a_run_trains_on_trees(tmp_path):
    with installed(tmp_path / "site", TOYS):
        write_spec(tmp_path, tree_spec())
        result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 0, result.stderr
    metrics = metrics_of(tmp_path / "runs/toy")
    assert metrics[-1]["optim/updates"] == 2
    assert "algorithm/self_distillation" in metrics[-1]
    # Six segments per prompt of half the forwards each, shared by four responses.
    assert metrics[0]["rollout/forwards"] == pytest.approx(6 * 2 / 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"rollout__block_length": 6}, "cannot be shared by 2 stages"), ({"model__kind": "toy-block"}, "'masked'")],
)
def test_what_cannot_branch_is_refused_before_loading(tmp_path, changes, message):
    with installed(tmp_path / "site", TOYS):
        spec = tree_spec(**changes)
        if spec["model"]["kind"] == "toy-block":
            spec["model"]["config"]["block_length"] = 3
        write_spec(tmp_path, spec)
        result = run_dare_here("validate", "spec.yaml", folder=tmp_path)
    assert result.code == 2
    assert message in result.stderr
