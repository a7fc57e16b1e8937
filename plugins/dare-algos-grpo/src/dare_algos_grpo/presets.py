"""What the algorithms ask of other sections: the authors' released settings, and the unified framework's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

D1: Mapping[str, Any] = {
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

COUPLED: Mapping[str, Any] = {
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
    "engine.reference_every": 64,
    "engine.reference_mix": 0.6,
}

#: optimizer and LoRA as in d1, whose code CJ-GRPO builds on
CJ: Mapping[str, Any] = {
    **D1,
    "likelihood.kind": "trajectory",
    "rollout.block_length": 128,
    "rollout.temperature": 1.0,
}

#: batch of one of the authors' devices: 8 accumulated groups
JUST: Mapping[str, Any] = {
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
MDPO: Mapping[str, Any] = {
    "likelihood.kind": "snapshots",
    "rollout.new_tokens": 512,
    "rollout.steps_total": 128,
    "rollout.block_length": 512,
    "rollout.temperature": 0.4,
    "optim.lr": 7e-7,
    "optim.batch_size": 256,
}

#: the authors' configuration for SDAR; the rule's own threshold is theirs, 0.9
TRACE: Mapping[str, Any] = {
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
TRACE_MASKED: Mapping[str, Any] = {
    "algorithm.group_size": 8,
    "rollout.new_tokens": 512,
    "rollout.steps_total": 512,
    "rollout.block_length": 32,
    "rollout.temperature": 0.8,
    "rollout.selection.kind": "low-confidence",
    "optim.batch_size": 256,
}

#: optimizer and LoRA as in d1, at a higher rate
TREE: Mapping[str, Any] = {
    **D1,
    "likelihood.kind": "snapshots",
    "likelihood.temperature": 1.0,
    "likelihood.scored_tokens": "completion",
    "rollout.schedule": "even",
    "optim.lr": 3e-5,
    "optim.batch_size": 64,
}

#: the unified framework of arXiv:2604.04215: one loss for all, full fine-tuning, one update per rollout
UNIFIED: Mapping[str, Any] = {
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
UNIFIED_BLOCK: Mapping[str, Any] = {
    **{path: value for path, value in UNIFIED.items() if path not in ("rollout.steps_total", "rollout.block_length")},
    "algorithm.reduction": "transition-mean",
    "rollout.new_tokens": 2048,
    "rollout.temperature": 1.0,
    "rollout.top_k": 50,
    "rollout.eos_rule": "stop",
    "rollout.selection.kind": "confidence-threshold",
    "rollout.selection.options.threshold": 0.95,
}

#: its MDPO has neither dual clip nor length weighting of its own, and trains 16 steps of the whole batch
MDPO_UNIFIED: Mapping[str, Any] = {
    **{path: value for path, value in UNIFIED.items() if path != "algorithm.dual_clip"},
    "algorithm.train_steps": 16,
    "algorithm.select_per": "batch",
    "algorithm.count_eps": 0.0,
    "likelihood.temperature": 1.0,
}
