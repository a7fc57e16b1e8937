"""Objectives of the policy-gradient algorithms on a toy: rollouts, policies near each other, losses and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from tests.executor.toy_training import toy_rows
from tests.made_inputs import rollout_of, verdicts_of
from torch import Tensor

from dare_algos_grpo.cj_grpo import CjGrpo
from dare_algos_grpo.config import (
    CjGrpoSection,
    CoupledGrpoSection,
    CoupledSection,
    D1Section,
    JustGrpoSection,
    LeftToRightSection,
    OneStepSection,
    TraceRlSection,
    TrajectorySection,
    Wd1Section,
)
from dare_algos_grpo.coupled_grpo import CoupledGrpo
from dare_algos_grpo.d1 import D1
from dare_algos_grpo.estimators.coupled import Coupled
from dare_algos_grpo.estimators.left_to_right import LeftToRight
from dare_algos_grpo.estimators.one_step import OneStep
from dare_algos_grpo.estimators.trajectory import Trajectory
from dare_algos_grpo.just_grpo import JustGrpo
from dare_algos_grpo.tracerl import TraceRl
from dare_algos_grpo.wd1 import Wd1
from dare_core.api import SectionConfig
from dare_core.interfaces import Algorithm, LikelihoodEstimator, Objective, PlanContext
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import Address, LossInputs, LossOutput, Progress, Rollout, Scores

ALGORITHMS: dict[str, tuple[type[Algorithm], Callable[..., SectionConfig], LikelihoodEstimator]] = {
    "d1": (D1, D1Section, OneStep(OneStepSection())),
    "coupled-grpo": (CoupledGrpo, CoupledGrpoSection, Coupled(CoupledSection())),
    "cj-grpo": (CjGrpo, CjGrpoSection, Trajectory(TrajectorySection())),
}
PLAIN = {"d1-plain": (D1, D1Section, OneStep(OneStepSection(prompt_mask=0.0)))}
#: with a reduction of their own only
OWN: dict[str, tuple[type[Algorithm], Callable[..., SectionConfig], LikelihoodEstimator]] = {
    "wd1": (Wd1, Wd1Section, OneStep(OneStepSection())),
    "justgrpo": (JustGrpo, JustGrpoSection, LeftToRight(LeftToRightSection())),
    "tracerl": (
        TraceRl,
        partial(TraceRlSection, mean_reward_range=None, fail_overlong=False),
        Trajectory(TrajectorySection()),
    ),
}
SCORES = [1.0, 0.0, 0.3, 0.9, 0.0, 2.0]


def toy_rollout(extra: int = 0, order: Tensor | None = None) -> Rollout:
    """Six rows in groups of two, of different lengths, two tokens per step; some end before their last token."""
    rows = toy_rows()
    from_end = rows.response.flip(1).cumsum(1).flip(1)
    completion = rows.response & ((from_end > 1) | (torch.arange(6) % 2 == 0)[:, None])
    offset = rows.response.cumsum(1) - 1
    step = torch.where(rows.response, offset // 2, -1)
    order = torch.arange(6) if order is None else order
    columns = {
        name: torch.nn.functional.pad(value[order], (0, extra))
        for name, value in (
            ("tokens", rows.tokens),
            ("prompt", rows.prompt),
            ("response", rows.response),
            ("completion", completion),
        )
    }
    made = replace(
        rows,
        **columns,
        sample_id=rows.sample_id[order],
        group=rows.group[order],
        example_id=tuple(rows.example_id[i] for i in order.tolist()),
    )
    return rollout_of(made, torch.nn.functional.pad(step[order], (0, extra), value=-1))


def drifted(adapter: ToyMasked, amount: float) -> ToyMasked:
    """Another policy near the adapter's."""
    bias, table = (p.detach() for p in (adapter.module.bias, adapter.module.table))
    return ToyMasked.from_tables(bias + amount * bias.roll(1, 1), table)


def objective_of(
    kind: str,
    adapter: ToyMasked,
    rollout: Rollout,
    scores: list[float | None],
    *,
    old: ToyMasked | None = None,
    reference: ToyMasked | None = None,
    **options: Any,
) -> Objective:
    cls, section, estimator = (ALGORITHMS | PLAIN | OWN)[kind]
    algorithm = cls(section(**options))
    context = PlanContext(facts=adapter.facts, address=Address(7, "corruption", 0), layout=adapter.facts.layout)
    views = estimator.plan(rollout, context)

    def estimate(policy: ToyMasked | None) -> Any:
        return None if policy is None else estimator.reduce(views, policy.token_logp(views), rollout).detached()

    return Objective(
        estimator=estimator,
        algorithm=algorithm,
        rows=rollout,
        views=views,
        progress=Progress(0, 1),
        advantages=algorithm.advantages(rollout, verdicts_of(scores)),
        old=estimate(old),
        reference=estimate(reference),
    )


def loss_and_gradient(objective: Objective, adapter: ToyMasked) -> tuple[LossOutput, list[Tensor]]:
    out = objective(adapter.token_logp(objective.views))
    found = torch.autograd.grad(out.loss, list(adapter.module.parameters()), allow_unused=True)
    blank = [torch.zeros_like(p) for p in adapter.module.parameters()]
    return out, [b if g is None else g for g, b in zip(found, blank, strict=True)]


def loss_inputs_of(objective: Objective, scores: Scores) -> LossInputs:
    """The loss inputs that the objective makes of ``scores``."""
    seen: list[LossInputs] = []
    algorithm = objective.algorithm
    original = algorithm.loss

    def kept(inputs: LossInputs) -> LossOutput:
        seen.append(inputs)
        return original(inputs)

    algorithm.loss = kept
    objective(scores)
    algorithm.loss = original
    return seen[0]
