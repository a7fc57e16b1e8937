"""What dare-llada2 offers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dare_core.api import Component, hookimpl

#: the published sampler of LLaDA2.0: threshold 0.95, whole blocks, quotas as for a whole block, end after EOS
_DECODING = {
    "rollout.selection.kind": "dynamic-threshold",
    "rollout.selection.options": {"threshold": 0.95},
    "rollout.schedule": "even-block",
    "rollout.whole_blocks": True,
    "rollout.eos_rule": "stop",
}


def _editing(threshold: float, edit_threshold: float) -> Mapping[str, Any]:
    """LLaDA2.1's sampler with token editing; its model card gives two pairs of thresholds."""
    return {
        "rollout.selection.kind": "joint-threshold",
        "rollout.selection.options": {"threshold": threshold, "edit_threshold": edit_threshold},
        "rollout.eos_rule": "fill",
    }


@hookimpl
def dare_model_adapters() -> Iterable[Component]:
    """The LLaDA2 family."""
    return [
        Component(
            kind="llada2",
            target="dare_llada2.adapter:Llada2Adapter",
            config="dare_llada2.config:Llada2Section",
            summary="LLaDA2.0 and LLaDA2.1 (mini 16B-A1B, flash 100B) and fresh models of that architecture",
            requires=("torch", "transformers", "safetensors", "tokenizers", "jinja2"),
            provides=frozenset({"block", "token-logp", "mask-token", "kv-exact", "value-head"}),
            defaults=_DECODING,
            presets={"edit-quality": _editing(0.7, 0.5), "edit-speed": _editing(0.5, 0.0)},
            paper="arXiv:2512.15745",
        )
    ]


@hookimpl
def dare_detect_model(config: Mapping[str, Any]) -> str | None:
    """LLaDA2 by its model type or class name."""
    architectures = config.get("architectures") or ()
    is_llada2 = config.get("model_type") == "llada2_moe" or "LLaDA2MoeModelLM" in architectures
    return "llada2" if is_llada2 else None
