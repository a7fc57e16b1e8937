"""The one-file examples and the product give the same numbers on the same draws."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.made_inputs import plan_context, rollout_of, scores_from_logits, split_rows

from dare_algos_grpo.cj_grpo import CjGrpo
from dare_algos_grpo.config import (
    CjGrpoSection,
    CoupledGrpoSection,
    CoupledSection,
    D1Section,
    DTreeRpoSection,
    JustGrpoSection,
    LeftToRightSection,
    MdpoSection,
    OneStepSection,
    SnapshotsSection,
    TraceRlSection,
    TrajectorySection,
    Wd1Section,
)
from dare_algos_grpo.coupled_grpo import CoupledGrpo
from dare_algos_grpo.d1 import D1
from dare_algos_grpo.dtreerpo import DTreeRpo
from dare_algos_grpo.estimators.coupled import Coupled
from dare_algos_grpo.estimators.left_to_right import LeftToRight
from dare_algos_grpo.estimators.one_step import OneStep
from dare_algos_grpo.estimators.snapshots import StepGuesses
from dare_algos_grpo.estimators.trajectory import Trajectory
from dare_algos_grpo.just_grpo import JustGrpo
from dare_algos_grpo.mdpo import Mdpo
from dare_algos_grpo.tracerl import TraceRl
from dare_algos_grpo.wd1 import Wd1
from dare_core.interfaces import Algorithm, LikelihoodEstimator, Objective
from dare_core.types import Progress, Rollout, Scores, Snapshots, Verdict, VerdictStatus, Views

EXAMPLES = Path(__file__).parents[2] / "examples" / "one_file"


def example(kind: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"one_file_{kind.replace('-', '_')}", EXAMPLES / f"{kind}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Setting:
    """An example's three policies, and one rollout of it in the product's form."""

    progress = Progress(0, 1)
    #: rows per prompt that the example is given; None = its group
    repeats: int | None = None

    def __init__(self, kind: str) -> None:
        self.module = example(kind)
        self.generator = torch.Generator().manual_seed(3)
        self.live, self.old, self.base = (self.module.Toy(self.generator) for _ in range(3))
        # Policies near each other, so that ratios fall within and beyond the clip range.
        for policy in (self.old, self.base):
            for mine, theirs in zip(policy.parameters(), self.live.parameters(), strict=True):
                mine.data = 0.3 * mine.data + 0.7 * theirs.data
        prompts = torch.randint(0, 4, (2, self.module.PROMPT), generator=self.generator)
        prompts = prompts.repeat_interleave(self.repeats or self.module.GROUP, dim=0)
        self.keep(self.module.sample(self.old, prompts, 1.0, self.generator))
        self.uniform = torch.rand(self.tokens.shape, generator=self.generator, dtype=torch.float64)

    def keep(self, out: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        """Take over what the example sampled."""
        self.tokens, self.commit_step = out if isinstance(out, tuple) else (out, torch.full(out.shape, -1))
        self.rewards = self.module.reward(self.tokens)

    def verdicts(self) -> list[Verdict]:
        return [Verdict(float(r), VerdictStatus.WRONG) for r in self.rewards]

    def rollout(self) -> Rollout:
        rows = split_rows(self.tokens, self.module.PROMPT)
        completion = torch.zeros_like(rows.response)
        ends = (self.tokens == self.module.EOS) & rows.response
        completion = rows.response & (ends.cumsum(dim=1) - ends.long() == 0)
        group = torch.arange(len(rows)) // self.module.GROUP
        return rollout_of(replace(rows, completion=completion, group=group), self.commit_step)

    def product(
        self, algorithm: Algorithm, estimator: LikelihoodEstimator, views: Views, values: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Loss and gradients of the product."""
        objective = self.objective(algorithm, estimator, views, values)
        loss = objective(scores_from_logits(views, self.live(views.inputs))).loss
        return [loss, *torch.autograd.grad(loss, list(self.live.parameters()))]

    def objective(
        self, algorithm: Algorithm, estimator: LikelihoodEstimator, views: Views, values: torch.Tensor | None = None
    ) -> Objective:
        """The product's objective on the example's rollout."""
        rollout = self.rollout()

        def estimate(policy: torch.nn.Module):
            return estimator.reduce(views, scores_from_logits(views, policy(views.inputs)), rollout).detached()

        return Objective(
            estimator=estimator,
            algorithm=algorithm,
            rows=rollout,
            views=views,
            progress=self.progress,
            advantages=algorithm.advantages(rollout, self.verdicts()),
            old=estimate(self.old),
            reference=estimate(self.base),
            values=values,
        )

    def shown(self, loss: torch.Tensor) -> list[torch.Tensor]:
        """Loss and gradients of the example."""
        return [loss, *torch.autograd.grad(loss, list(self.live.parameters()))]


def assert_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    # Rewards travel as float32 in verdicts' advantages.
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_d1_in_one_file_is_the_product():
    s = Setting("d1")
    estimates = [s.module.log_likelihood(policy, s.tokens, s.uniform) for policy in (s.live, s.old, s.base)]
    mask = s.module.completion_mask(s.tokens)
    shown = s.module.loss(
        *(e.detach() if i else e for i, e in enumerate(estimates)), s.module.advantages(s.rewards), mask
    )
    estimator = OneStep(OneStepSection())
    views = estimator.views(s.rollout(), plan_context(s.module.MASK), s.uniform)
    assert_same(s.product(D1(D1Section()), estimator, views), s.shown(shown))


def test_coupled_grpo_in_one_file_is_the_product():
    s = Setting("coupled-grpo")
    estimates = [s.module.log_likelihood(policy, s.tokens, s.uniform, 0.4) for policy in (s.live, s.old, s.base)]
    mask = s.module.completion_mask(s.tokens)
    shown = s.module.loss(
        *(e.detach() if i else e for i, e in enumerate(estimates)), s.module.advantages(s.rewards), mask
    )
    estimator = Coupled(CoupledSection())
    ratio = torch.full((len(s.tokens),), 0.4, dtype=torch.float64)
    views = estimator.views(s.rollout(), plan_context(s.module.MASK), s.uniform, ratio)
    assert_same(s.product(CoupledGrpo(CoupledGrpoSection()), estimator, views), s.shown(shown))


def test_cj_grpo_in_one_file_is_the_product():
    s = Setting("cj-grpo")
    estimates = [s.module.log_likelihoods(policy, s.tokens, s.commit_step) for policy in (s.live, s.old, s.base)]
    shown = s.module.loss(
        *(e.detach() if i else e for i, e in enumerate(estimates)), s.module.advantages(s.rewards), s.commit_step
    )
    estimator = Trajectory(TrajectorySection())
    views = estimator.plan(s.rollout(), plan_context(s.module.MASK))
    assert_same(s.product(CjGrpo(CjGrpoSection()), estimator, views), s.shown(shown))


def test_wd1_in_one_file_is_the_product():
    s = Setting("wd1")
    shown = s.module.loss(
        s.module.log_likelihood(s.live, s.tokens, s.uniform),
        s.module.advantages(s.rewards),
        s.module.completion_mask(s.tokens),
    )
    estimator = OneStep(OneStepSection())
    views = estimator.views(s.rollout(), plan_context(s.module.MASK), s.uniform)
    assert_same(s.product(Wd1(Wd1Section()), estimator, views), s.shown(shown))


def test_justgrpo_in_one_file_is_the_product():
    s = Setting("justgrpo")
    live, old = (s.module.log_likelihood(policy, s.tokens) for policy in (s.live, s.old))
    shown = s.module.loss(live, old.detach(), s.module.advantages(s.rewards))
    estimator = LeftToRight(LeftToRightSection())
    views = estimator.plan(s.rollout(), plan_context(s.module.MASK))
    assert_same(s.product(JustGrpo(JustGrpoSection()), estimator, views), s.shown(shown))


def test_tracerl_in_one_file_is_the_product():
    s = Setting("tracerl")
    live, old = (s.module.log_likelihoods(policy, s.tokens, s.commit_step) for policy in (s.live, s.old))
    mask = s.module.trained(s.tokens)
    shown = s.module.loss(live, old.detach(), s.module.advantages(s.rewards), s.commit_step, mask)
    estimator = Trajectory(TrajectorySection(merge_steps=s.module.SHRINK))
    views = estimator.plan(s.rollout(), plan_context(s.module.MASK))
    # Rewards are graded and no answer need end here.
    algorithm = TraceRl(TraceRlSection(mean_reward_range=None, fail_overlong=False))
    assert_same(s.product(algorithm, estimator, views), s.shown(shown))


def test_tracerl_with_a_value_model_in_one_file_is_the_product():
    s = Setting("tracerl")
    judges = [s.module.Toy(s.generator) for _ in range(2)]
    for mine, theirs in zip(judges[1].parameters(), judges[0].parameters(), strict=True):
        mine.data = 0.3 * mine.data + 0.7 * theirs.data
    live, old = (s.module.log_likelihoods(policy, s.tokens, s.commit_step) for policy in (s.live, s.old))
    expected, before = (s.module.values_of(judge, s.tokens, s.commit_step) for judge in judges)
    mask, before = s.module.trained(s.tokens), before.detach()
    advantage, returned = s.module.along_trace(
        s.module.advantages(s.rewards), before, s.commit_step, mask, gamma=0.9, lam=0.8
    )
    shown = s.module.loss(live, old.detach(), advantage, s.commit_step, mask)
    value_shown = s.module.value_loss(expected, before, returned, s.commit_step, mask)

    estimator = Trajectory(TrajectorySection(merge_steps=s.module.SHRINK))
    views = estimator.plan(s.rollout(), plan_context(s.module.MASK))
    value = {"gamma": 0.9, "lam": 0.8}
    algorithm = TraceRl(TraceRlSection(mean_reward_range=None, fail_overlong=False, value_model=value))

    def values(judge: torch.nn.Module) -> torch.Tensor:
        return torch.where(views.scored, judge(views.inputs)[..., 0], 0.0)

    assert_same(s.product(algorithm, estimator, views, values=values(judges[1]).detach()), s.shown(shown))
    objective = s.objective(algorithm, estimator, views, values=values(judges[1]).detach())
    found = values(judges[0])
    loss = replace(objective, role="value")(Scores(logp=torch.zeros_like(found), value=found)).loss
    parameters = list(judges[0].parameters())
    assert_same(
        [loss, *torch.autograd.grad(loss, parameters)], [value_shown, *torch.autograd.grad(value_shown, parameters)]
    )


class StepSetting(Setting):
    """An example that keeps every forward."""

    def keep(self, out: tuple[torch.Tensor, ...]) -> None:
        self.states, self.guesses, self.confidence = out
        self.tokens, self.commit_step = self.guesses[-1], torch.full(self.guesses[-1].shape, -1)
        self.rewards = self.module.reward(self.guesses.flatten(0, 1)).view(len(self.guesses), -1)

    def verdicts(self) -> list[Verdict]:
        return [Verdict(r[-1], VerdictStatus.WRONG, prefix_scores=tuple(r)) for r in self.rewards.T.tolist()]

    def rollout(self) -> Rollout:
        def by_row(recorded: torch.Tensor) -> torch.Tensor:
            return recorded.transpose(0, 1).flatten(0, 1)

        steps, rows = self.rewards.shape
        snapshots = Snapshots(
            inputs=by_row(self.states),
            predicted=by_row(self.guesses),
            confidence=by_row(self.confidence),
            row=torch.arange(rows).repeat_interleave(steps),
            step=torch.arange(steps).repeat(rows),
        )
        return with_snapshots(super().rollout(), snapshots)


class TreeSetting(Setting):
    """An example whose rollouts branch once."""

    progress = Progress(50, 100)
    repeats = 1

    def keep(self, out: tuple[torch.Tensor, ...]) -> None:
        self.parents, self.children = out
        # Two prompts; the finished responses stand last.
        self.tokens = self.children[-2 * self.module.GROUP :]
        self.commit_step = torch.full(self.tokens.shape, -1)
        self.rewards = self.module.reward(self.tokens)

    def rollout(self) -> Rollout:
        leaves, halves = len(self.tokens), len(self.parents) - len(self.tokens)
        row = torch.cat([torch.arange(halves) * self.module.BRANCH, torch.arange(leaves)])
        step = torch.cat([torch.zeros(halves), torch.full((leaves,), self.module.HALF)]).long()
        parent = torch.cat([torch.full((halves,), -1), torch.arange(leaves) // self.module.BRANCH])
        order = (row * 99 + step).argsort()
        snapshots = Snapshots(
            inputs=self.parents[order],
            predicted=self.children[order],
            confidence=torch.ones(self.parents.shape),
            row=row[order],
            step=step[order],
            parent=torch.where(parent >= 0, order.argsort()[parent], -1)[order],
        )
        return with_snapshots(super().rollout(), snapshots)


def with_snapshots(rollout: Rollout, snapshots: Snapshots) -> Rollout:
    return replace(rollout, trace=replace(rollout.trace, snapshots=snapshots))


def test_mdpo_in_one_file_is_the_product():
    s = StepSetting("mdpo")
    estimates = [s.module.log_likelihoods(policy, s.states, s.guesses, 1.0) for policy in (s.live, s.old, s.base)]
    shown = s.module.loss(
        *(e.detach() if i else e for i, e in enumerate(estimates)),
        s.module.advantages(s.rewards),
        s.states,
        s.confidence,
    )
    algorithm, estimator = Mdpo(MdpoSection(train_steps=2)), StepGuesses(SnapshotsSection())
    selection = algorithm.select(s.rollout(), algorithm.advantages(s.rollout(), s.verdicts()))
    views = estimator.plan(s.rollout(), replace(plan_context(s.module.MASK), selection=selection))
    assert_same(s.product(algorithm, estimator, views), s.shown(shown))


def test_d_treerpo_in_one_file_is_the_product():
    s = TreeSetting("d-treerpo")
    estimates = [s.module.log_likelihoods(policy, s.parents, s.children) for policy in (s.live, s.old, s.base)]
    shown = s.module.loss(
        *(e.detach() if i else e for i, e in enumerate(estimates)),
        s.parents,
        s.children,
        s.module.advantages(s.rewards),
        0.5,
    )
    size = {"root_branches": s.module.ROOT, "branches": s.module.BRANCH, "group_size": s.module.GROUP}
    algorithm = DTreeRpo(DTreeRpoSection(**size, distill_steps=100))
    estimator = StepGuesses(SnapshotsSection(scored_tokens="completion"))
    context = plan_context(s.module.MASK)
    views = estimator.plan(s.rollout(), replace(context, facts=replace(context.facts, eos_ids=(s.module.EOS,))))
    assert_same(s.product(algorithm, estimator, views), s.shown(shown))


@pytest.mark.parametrize("kind", ["d1", "coupled-grpo", "cj-grpo", "wd1", "justgrpo", "mdpo", "tracerl", "d-treerpo"])
def test_the_example_learns(kind):
    history = example(kind).train()
    assert sum(history[-5:]) > sum(history[:5]) + 1.0


def test_the_example_learns_with_a_value_model_too():
    history = example("tracerl").train(critic=True)
    assert sum(history[-5:]) > sum(history[:5]) + 1.0
