"""What this package offers. Defaults are those of the authors' released configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dare_core.api import Component, hookimpl

_D1: Mapping[str, Any] = {
    "likelihood.kind": "one-step",
    "rollout.new_tokens": 256,
    "rollout.steps_total": 128,
    "rollout.block_length": 32,
    "rollout.temperature": 0.9,
    "optim.lr": 3e-6,
    "optim.betas": (0.9, 0.99),
    "optim.weight_decay": 0.1,
    "optim.clip_norm": 0.2,
    "optim.batch_size": 96,
    "peft.kind": "lora",
    "peft.r": 128,
    "peft.alpha": 64,
}

_COUPLED: Mapping[str, Any] = {
    "likelihood.kind": "coupled",
    "rollout.new_tokens": 256,
    "rollout.steps_total": 256,
    "rollout.temperature": 1.0,
    "rollout.top_p": 0.95,
    "rollout.selection.kind": "entropy",
    "optim.lr": 1e-6,
    "optim.schedule": "cosine",
    "optim.min_lr_ratio": 0.1,
    "optim.betas": (0.9, 0.99),
    "optim.weight_decay": 0.1,
    "optim.clip_norm": 0.2,
    "optim.batch_size": 80,
}

#: optimizer and LoRA as in d1, whose code CJ-GRPO builds on
_CJ: Mapping[str, Any] = {
    **_D1,
    "likelihood.kind": "trajectory",
    "rollout.block_length": 128,
    "rollout.temperature": 1.0,
}

#: batch of one of the authors' devices: 8 accumulated groups
_JUST: Mapping[str, Any] = {
    "likelihood.kind": "left-to-right",
    "rollout.new_tokens": 256,
    "rollout.steps_total": 256,
    "rollout.block_length": 1,
    "rollout.temperature": 1.0,
    "optim.lr": 5e-6,
    "optim.betas": (0.9, 0.999),
    "optim.weight_decay": 0.0,
    "optim.clip_norm": 1.0,
    "optim.batch_size": 128,
}

#: the authors' README, whose command lines override the released yaml
_MDPO: Mapping[str, Any] = {
    "likelihood.kind": "snapshots",
    "rollout.new_tokens": 512,
    "rollout.steps_total": 128,
    "rollout.block_length": 512,
    "rollout.temperature": 0.4,
    "optim.lr": 7e-7,
    "optim.batch_size": 256,
}

#: the authors' configuration for SDAR; the rule's own threshold is theirs, 0.9
_TRACE: Mapping[str, Any] = {
    "likelihood.kind": "trajectory",
    "likelihood.pad_targets": 0,
    "rollout.new_tokens": 2000,
    "rollout.temperature": 1.0,
    "rollout.eos_rule": "stop",
    "rollout.selection.kind": "confidence-threshold",
    "optim.lr": 1e-6,
    "optim.betas": (0.9, 0.999),
    "optim.weight_decay": 0.0,
    "optim.clip_norm": 1.0,
    "optim.batch_size": 1024,
}

#: and for LLaDA
_TRACE_MASKED: Mapping[str, Any] = {
    "algorithm.group_size": 8,
    "rollout.new_tokens": 512,
    "rollout.steps_total": 512,
    "rollout.block_length": 32,
    "rollout.temperature": 0.8,
    "rollout.selection.kind": "low-confidence",
    "optim.batch_size": 256,
}

#: the unified framework of arXiv:2604.04215: one loss for all, full fine-tuning, one update per rollout
_UNIFIED: Mapping[str, Any] = {
    "algorithm.group_size": 8,
    "algorithm.inner_updates": 1,
    "algorithm.baseline": "mean",
    "algorithm.scale": "std",
    "algorithm.scale_eps": 1e-6,
    "algorithm.lone_row": "raw",
    "algorithm.clip_range": 0.2,
    "algorithm.dual_clip": 3.0,
    "algorithm.kl_weight": 0.0,
    "algorithm.trained_tokens": "response",
    "rollout.new_tokens": 512,
    "rollout.steps_total": 256,
    "rollout.block_length": 32,
    "rollout.temperature": 0.6,
    "rollout.top_p": 1.0,
    "rollout.selection.kind": "low-confidence",
    "optim.lr": 5e-7,
    "optim.schedule": "constant",
    "optim.betas": (0.9, 0.999),
    "optim.weight_decay": 0.01,
    "optim.clip_norm": 1.0,
    "optim.batch_size": 128,
    "peft": None,
}

#: its setting for SDAR: blocks of the model's own length, as many steps as the threshold makes
_UNIFIED_BLOCK: Mapping[str, Any] = {
    **{path: value for path, value in _UNIFIED.items() if path not in ("rollout.steps_total", "rollout.block_length")},
    "algorithm.reduction": "transition-mean",
    "rollout.new_tokens": 2048,
    "rollout.temperature": 1.0,
    "rollout.top_k": 50,
    "rollout.eos_rule": "stop",
    "rollout.selection.kind": "confidence-threshold",
    "rollout.selection.options.threshold": 0.95,
}

#: its MDPO has neither dual clip nor length weighting of its own, and trains 16 steps of the whole batch
_MDPO_UNIFIED: Mapping[str, Any] = {
    **{path: value for path, value in _UNIFIED.items() if path != "algorithm.dual_clip"},
    "algorithm.train_steps": 16,
    "algorithm.select_per": "batch",
    "algorithm.count_eps": 0.0,
    "likelihood.temperature": 1.0,
}


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
            defaults=_D1,
            presets={"dare-2604": _UNIFIED},
            paper="arXiv:2504.12216",
        ),
        Component(
            kind="coupled-grpo",
            target="dare_algos_grpo.coupled_grpo:CoupledGrpo",
            config="dare_algos_grpo.config:CoupledGrpoSection",
            summary="Coupled-GRPO: complementary masks, leave-one-out baseline",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "token-estimate"}),
            defaults=_COUPLED,
            presets={"dare-2604": {**_UNIFIED, "likelihood.ratio_per": "row"}},
            paper="arXiv:2506.20639",
        ),
        Component(
            kind="cj-grpo",
            target="dare_algos_grpo.cj_grpo:CjGrpo",
            config="dare_algos_grpo.config:CjGrpoSection",
            summary="CJ-GRPO: policy gradient on the decoder's own steps",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "view-token-estimate"}),
            defaults=_CJ,
            presets={"dare-2604": {**_UNIFIED, "rollout.new_tokens": 256}, "dare-2604-block": _UNIFIED_BLOCK},
            paper="arXiv:2509.23924",
        ),
        Component(
            kind="justgrpo",
            target="dare_algos_grpo.just_grpo:JustGrpo",
            config="dare_algos_grpo.config:JustGrpoSection",
            summary="JustGRPO: left-to-right rollouts and their exact log-probability",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "token-estimate"}),
            defaults=_JUST,
            presets={
                "dare-2604": {
                    **_UNIFIED,
                    "algorithm.reduction": "token-mean",
                    "rollout.steps_total": 512,
                    "rollout.block_length": 1,
                }
            },
            paper="arXiv:2601.15165",
        ),
        Component(
            kind="mdpo",
            target="dare_algos_grpo.mdpo:Mdpo",
            config="dare_algos_grpo.config:MdpoSection",
            summary="MDPO: rewards of intermediate guesses, the most important denoising steps trained",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "masked", "snapshots", "prefix", "view-token-estimate"}),
            defaults=_MDPO,
            presets={"dare-2604": _MDPO_UNIFIED},
            paper="arXiv:2508.13148",
        ),
        Component(
            kind="tracerl",
            target="dare_algos_grpo.tracerl:TraceRl",
            config="dare_algos_grpo.config:TraceRlSection",
            summary="TraceRL: policy gradient along the sampled trace, steps merged at will",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "view-token-estimate"}),
            defaults=_TRACE,
            presets={"masked": _TRACE_MASKED},
            paper="arXiv:2509.06949",
        ),
        Component(
            kind="wd1",
            target="dare_algos_grpo.wd1:Wd1",
            config="dare_algos_grpo.config:Wd1Section",
            summary="wd1: likelihood weighted by advantage, no ratio, no reference policy",
            requires=("torch",),
            needs=frozenset({"prompts", "sampling", "token-estimate"}),
            defaults=_D1,
            paper="arXiv:2507.08838",
        ),
    ]


@hookimpl
def dare_likelihood_estimators() -> Iterable[Component]:
    """Estimates per token, and per view and token."""
    return [
        Component(
            kind="one-step",
            target="dare_algos_grpo.estimators.one_step:OneStep",
            config="dare_algos_grpo.config:OneStepSection",
            summary="one forward on the fully masked response, prompt partly masked",
            requires=("torch",),
            provides=frozenset({"token-estimate"}),
            needs=frozenset({"token-logp"}),
            paper="arXiv:2504.12216",
        ),
        Component(
            kind="coupled",
            target="dare_algos_grpo.estimators.coupled:Coupled",
            config="dare_algos_grpo.config:CoupledSection",
            summary="a complementary pair of masks averaged with the full mask",
            requires=("torch",),
            provides=frozenset({"token-estimate"}),
            needs=frozenset({"token-logp"}),
            paper="arXiv:2506.20639",
        ),
        Component(
            kind="trajectory",
            target="dare_algos_grpo.estimators.trajectory:Trajectory",
            config="dare_algos_grpo.config:TrajectorySection",
            summary="one forward per denoising step of the rollout, replayed from commit steps",
            requires=("torch",),
            provides=frozenset({"view-token-estimate"}),
            needs=frozenset({"token-logp", "commit-step"}),
            paper="arXiv:2509.23924",
        ),
        Component(
            kind="snapshots",
            target="dare_algos_grpo.estimators.snapshots:StepGuesses",
            config="dare_algos_grpo.config:SnapshotsSection",
            summary="one forward per chosen denoising step of the rollout, scoring its guess",
            requires=("torch",),
            provides=frozenset({"view-token-estimate"}),
            needs=frozenset({"token-logp", "snapshots"}),
            paper="arXiv:2508.13148",
        ),
        Component(
            kind="left-to-right",
            target="dare_algos_grpo.estimators.left_to_right:LeftToRight",
            config="dare_algos_grpo.config:LeftToRightSection",
            summary="one forward per response position, exact for left-to-right decoding",
            requires=("torch",),
            provides=frozenset({"token-estimate"}),
            needs=frozenset({"token-logp"}),
            paper="arXiv:2601.15165",
        ),
    ]
