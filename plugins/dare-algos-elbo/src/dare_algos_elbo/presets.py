"""Settings that the components of this package ask for elsewhere in a spec, and named alternatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: LLaDA report, section 2.3
SFT: Mapping[str, Any] = {
    "likelihood.kind": "bernoulli",
    "optim.lr": 2.5e-5,
    "optim.warmup_steps": 50,
    "optim.weight_decay": 0.1,
    "optim.batch_size": 256,
}

#: other families' recipes, and the unified framework of arXiv:2604.04215
SFT_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "dream": {
        "algorithm.supervise_padding": False,
        "algorithm.loss_normalizer": "noised-tokens",
        "likelihood.weight": "cart",
        "likelihood.cart_decay": 0.1,
        "likelihood.crop": "batch",
    },
    "sdar": {
        "algorithm.supervise_padding": False,
        "algorithm.loss_normalizer": "supervised-tokens",
        "likelihood.redraws": 10,
        "optim.lr": 1e-5,
        "optim.schedule": "constant",
        "optim.weight_decay": 0.0,
    },
    "llada2": {
        "algorithm.supervise_padding": False,
        "algorithm.loss_normalizer": "noised-tokens",
        "likelihood.weight": "none",
        "likelihood.time_low": 0.3,
        "likelihood.time_high": 0.8,
        "optim.lr": 1e-5,
        "optim.schedule": "cosine",
        "optim.weight_decay": 0.1,
        "optim.batch_size": 8,
    },
    "uniform": {
        "algorithm.supervise_padding": False,
        "algorithm.loss_normalizer": "supervised-tokens",
        "likelihood.weight": "none",
        "likelihood.score_kept": True,
        "optim.lr": 1e-5,
        "optim.weight_decay": 0.0,
    },
    "mdlm": {
        "algorithm.loss_normalizer": "supervised-tokens",
        "optim.lr": 2e-5,
        "optim.weight_decay": 0.0,
    },
    "dare-2604": {
        "algorithm.loss_normalizer": "noised-tokens",
        "optim.lr": 1e-4,
        "optim.schedule": "cosine",
        "optim.betas": (0.9, 0.95),
        "optim.weight_decay": 0.01,
        "peft.kind": "lora",
        "peft.r": 32,
        "peft.alpha": 16,
    },
}

#: Rafailov et al. 2023, appendix B
DPO: Mapping[str, Any] = {
    "likelihood.kind": "bernoulli",
    "optim.lr": 1e-6,
    "optim.warmup_steps": 150,
    "optim.batch_size": 128,
}

#: the unified framework's, without its division of estimates
VRPO: Mapping[str, Any] = {
    "likelihood.kind": "count-stratified",
    "likelihood.draws": 4,
    "optim.lr": 5e-7,
    "optim.weight_decay": 0.01,
    "optim.batch_size": 128,
}
UNIFIED_VRPO: Mapping[str, Any] = {
    "algorithm.score_divisor": 512.0,
    "likelihood.draws": 4,
    "likelihood.rounding": "published",
    "peft": None,
}

_D1_OPTIMISER: Mapping[str, Any] = {
    "optim.lr": 3e-6,
    "optim.betas": (0.9, 0.99),
    "optim.clip_norm": 0.2,
    "optim.batch_size": 96,
    "peft.kind": "lora",
    "peft.r": 128,
    "peft.alpha": 64,
}

#: the unified framework of arXiv:2604.04215: full fine-tuning, one update per rollout
_UNIFIED_ROLLOUT: Mapping[str, Any] = {
    "rollout.new_tokens": 512,
    "rollout.steps_total": 256,
    "rollout.block_length": 32,
    "rollout.temperature": 0.6,
}
_UNIFIED_OPTIMISER: Mapping[str, Any] = {
    "optim.lr": 5e-7,
    "optim.schedule": "constant",
    "optim.betas": (0.9, 0.999),
    "optim.weight_decay": 0.01,
    "optim.clip_norm": 1.0,
    "optim.batch_size": 128,
    "peft": None,
}
_UNIFIED_ADVANTAGE: Mapping[str, Any] = {
    "algorithm.baseline": "mean",
    "algorithm.scale": "std",
    "algorithm.lone_row": "raw",
}

#: BGPO and EBPO: the unified framework's port is the only code at hand
_PORTED: Mapping[str, Any] = {
    **_UNIFIED_ROLLOUT,
    "optim.lr": 5e-7,
    "optim.weight_decay": 0.01,
    "optim.batch_size": 128,
}
BGPO: Mapping[str, Any] = {
    "likelihood.kind": "count-stratified",
    "likelihood.draws": 16,
    "likelihood.per": "view",
    "likelihood.targets": "completion",
    **_PORTED,
}
UNIFIED_BGPO: Mapping[str, Any] = {"likelihood.rounding": "published", **_UNIFIED_OPTIMISER}

EBPO: Mapping[str, Any] = {
    "likelihood.kind": "block-stratified",
    "likelihood.draws": 16,
    "likelihood.targets": "completion",
    **_PORTED,
}
UNIFIED_EBPO: Mapping[str, Any] = {**_UNIFIED_OPTIMISER}

#: authors' recipe for GSM8K
ESPO: Mapping[str, Any] = {
    "likelihood.kind": "espo",
    "rollout.new_tokens": 256,
    "rollout.steps_total": 128,
    "rollout.block_length": 32,
    "rollout.temperature": 1.0,
    "engine.reference_every": 64,
    **_D1_OPTIMISER,
}
UNIFIED_ESPO: Mapping[str, Any] = {
    "algorithm.group_size": 16,
    "algorithm.length_divisor": 512.0,
    "likelihood.targets": "completion",
    "likelihood.rounding": "published",
    "engine.reference_every": None,
    **_UNIFIED_ROLLOUT,
    **_UNIFIED_OPTIMISER,
}

#: authors' recipe for GSM8K
SPG: Mapping[str, Any] = {
    "likelihood.kind": "spg",
    "rollout.new_tokens": 256,
    "rollout.steps_total": 128,
    "rollout.block_length": 32,
    "rollout.temperature": 0.9,
    "optim.weight_decay": 0.1,
    **_D1_OPTIMISER,
}
UNIFIED_SPG: Mapping[str, Any] = {
    "algorithm.group_size": 8,
    "algorithm.inner_updates": 1,
    **_UNIFIED_ADVANTAGE,
    "likelihood.draws": 1,
    **_UNIFIED_ROLLOUT,
    **_UNIFIED_OPTIMISER,
}
