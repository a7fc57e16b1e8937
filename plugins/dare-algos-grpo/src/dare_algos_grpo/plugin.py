"""What this package offers. Defaults are those of the authors' released configurations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dare_algos_grpo.plan_checks import tree_problems
from dare_algos_grpo.presets import (
    CJ,
    COUPLED,
    D1,
    JUST,
    MDPO,
    MDPO_UNIFIED,
    TRACE,
    TRACE_MASKED,
    TREE,
    UNIFIED,
    UNIFIED_BLOCK,
)
from dare_core.api import Component, Problem, hookimpl

if TYPE_CHECKING:
    from dare_core.spec.plan import RunPlan


@hookimpl
def dare_algorithms() -> Iterable[Component]:
    """Policy gradients."""
    return [
        Component(
            kind="d1",
            target="dare_algos_grpo.d1:D1",
            config="dare_algos_grpo.config:D1Section",
            summary="diffu-GRPO: one-step likelihood with masked prompts, several updates per rollout",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "token-estimate"}),
            defaults=D1,
            presets={"dare-2604": UNIFIED},
            paper="arXiv:2504.12216",
        ),
        Component(
            kind="coupled-grpo",
            target="dare_algos_grpo.coupled_grpo:CoupledGrpo",
            config="dare_algos_grpo.config:CoupledGrpoSection",
            summary="Coupled-GRPO: complementary masks, leave-one-out baseline",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "token-estimate"}),
            defaults=COUPLED,
            presets={"dare-2604": {**UNIFIED, "likelihood.ratio_per": "row"}},
            paper="arXiv:2506.20639",
        ),
        *_on_recorded_steps(),
        *_others(),
    ]


def _on_recorded_steps() -> list[Component]:
    """Algorithms that train on what the decoder did step by step."""
    return [
        Component(
            kind="cj-grpo",
            target="dare_algos_grpo.cj_grpo:CjGrpo",
            config="dare_algos_grpo.config:CjGrpoSection",
            summary="CJ-GRPO: policy gradient on the decoder's own steps",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "view-token-estimate"}),
            defaults=CJ,
            presets={"dare-2604": {**UNIFIED, "rollout.new_tokens": 256}, "dare-2604-block": UNIFIED_BLOCK},
            paper="arXiv:2509.23924",
        ),
        Component(
            kind="mdpo",
            target="dare_algos_grpo.mdpo:Mdpo",
            config="dare_algos_grpo.config:MdpoSection",
            summary="MDPO: rewards of intermediate guesses, the most important denoising steps trained",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "masked", "snapshots", "prefix", "snapshot-estimate"}),
            defaults=MDPO,
            presets={"dare-2604": MDPO_UNIFIED},
            paper="arXiv:2508.13148",
        ),
        Component(
            kind="tracerl",
            target="dare_algos_grpo.tracerl:TraceRl",
            config="dare_algos_grpo.config:TraceRlSection",
            summary="TraceRL: policy gradient along the sampled trace, steps merged at will",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "view-token-estimate"}),
            defaults=TRACE,
            presets={"masked": TRACE_MASKED},
            paper="arXiv:2509.06949",
        ),
        Component(
            kind="d-treerpo",
            target="dare_algos_grpo.dtreerpo:DTreeRpo",
            config="dare_algos_grpo.config:DTreeRpoSection",
            summary="d-TreeRPO: branching rollouts, siblings compared, good siblings distilled",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "masked", "tree", "snapshot-estimate"}),
            defaults=TREE,
            presets={"dare-2604": {"optim.betas": (0.9, 0.999), "optim.weight_decay": 0.01, "optim.batch_size": 256}},
            paper="arXiv:2512.09675",
        ),
    ]


def _others() -> list[Component]:
    """Algorithms without clipping that acts."""
    return [
        Component(
            kind="justgrpo",
            target="dare_algos_grpo.just_grpo:JustGrpo",
            config="dare_algos_grpo.config:JustGrpoSection",
            summary="JustGRPO: left-to-right rollouts and their exact log-probability",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "token-estimate"}),
            defaults=JUST,
            presets={
                "dare-2604": {
                    **UNIFIED,
                    "algorithm.reduction": "token-mean",
                    "rollout.steps_total": 512,
                    "rollout.block_length": 1,
                }
            },
            paper="arXiv:2601.15165",
        ),
        Component(
            kind="wd1",
            target="dare_algos_grpo.wd1:Wd1",
            config="dare_algos_grpo.config:Wd1Section",
            summary="wd1: likelihood weighted by advantage, no ratio, no reference policy",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "token-estimate"}),
            defaults=D1,
            paper="arXiv:2507.08838",
        ),
    ]


@hookimpl
def dare_likelihood_estimators() -> Iterable[Component]:
    """Estimates per token, and per view and token."""
    return [*_token_estimators(), *_view_token_estimators()]


def _token_estimators() -> list[Component]:
    return [
        Component(
            kind="one-step",
            target="dare_algos_grpo.estimators.one_step:OneStep",
            config="dare_algos_grpo.config:OneStepSection",
            summary="one forward on the fully masked response, prompt partly masked",
            requires=("torch",),
            provides=frozenset({"token-estimate"}),
            needs=frozenset({"token-logp", "mask-token"}),
            paper="arXiv:2504.12216",
        ),
        Component(
            kind="coupled",
            target="dare_algos_grpo.estimators.coupled:Coupled",
            config="dare_algos_grpo.config:CoupledSection",
            summary="a complementary pair of masks averaged with the full mask",
            requires=("torch",),
            provides=frozenset({"token-estimate"}),
            needs=frozenset({"token-logp", "mask-token"}),
            paper="arXiv:2506.20639",
        ),
        Component(
            kind="left-to-right",
            target="dare_algos_grpo.estimators.left_to_right:LeftToRight",
            config="dare_algos_grpo.config:LeftToRightSection",
            summary="one forward per response position, exact for left-to-right decoding",
            requires=("torch",),
            provides=frozenset({"token-estimate"}),
            needs=frozenset({"token-logp", "mask-token"}),
            paper="arXiv:2601.15165",
        ),
    ]


def _view_token_estimators() -> list[Component]:
    return [
        Component(
            kind="trajectory",
            target="dare_algos_grpo.estimators.trajectory:Trajectory",
            config="dare_algos_grpo.config:TrajectorySection",
            summary="one forward per denoising step of the rollout, replayed from commit steps",
            requires=("torch",),
            provides=frozenset({"view-token-estimate"}),
            needs=frozenset({"token-logp", "mask-token", "commit-step"}),
            paper="arXiv:2509.23924",
        ),
        Component(
            kind="snapshots",
            target="dare_algos_grpo.estimators.snapshots:StepGuesses",
            config="dare_algos_grpo.config:SnapshotsSection",
            summary="one forward per chosen denoising step of the rollout, scoring its guess",
            requires=("torch",),
            provides=frozenset({"view-token-estimate", "snapshot-estimate"}),
            needs=frozenset({"token-logp", "mask-token", "snapshots"}),
            paper="arXiv:2508.13148",
        ),
        Component(
            kind="random-mask",
            target="dare_algos_grpo.estimators.random_mask:RandomMask",
            config="dare_algos_grpo.config:RandomMaskSection",
            summary="random shares of the response hidden, each mask a view of its own",
            requires=("torch",),
            provides=frozenset({"view-token-estimate"}),
            needs=frozenset({"token-logp", "mask-token"}),
            paper="arXiv:2509.06949",
        ),
    ]


@hookimpl
def dare_check_run(plan: RunPlan) -> Iterable[Problem]:
    """Decoding that an algorithm cannot work with."""
    return list(tree_problems(plan))
