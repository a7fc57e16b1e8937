"""What dare-sdar offers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dare_core.api import Component, hookimpl

_REQUIRES = ("torch", "transformers", "safetensors", "tokenizers", "jinja2")
_PROVIDES = frozenset({"block", "token-logp", "mask-token", "kv-exact", "value-head"})
#: the published sampler: dynamic threshold 0.85, whole blocks, quotas as for a whole block, end at a stop id;
#: the published SFT learns no filling and divides by answer tokens
_WISHES = {
    "algorithm.supervise_padding": False,
    "algorithm.loss_normalizer": "supervised-tokens",
    "rollout.selection.kind": "dynamic-threshold",
    "rollout.schedule": "even-block",
    "rollout.whole_blocks": True,
    "rollout.eos_rule": "stop",
}
#: model type -> (class name, kind)
_KINDS = {"sdar": ("SDARForCausalLM", "sdar"), "sdar_moe": ("SDARMoeForCausalLM", "sdar-moe")}


@hookimpl
def dare_model_adapters() -> Iterable[Component]:
    """The SDAR family, dense and mixture of experts."""
    return [
        Component(
            kind="sdar",
            target="dare_sdar.adapter:SdarAdapter",
            config="dare_sdar.config:SdarSection",
            summary="SDAR-1.7B, 4B and 8B Chat, TraDo and fresh models of that architecture",
            requires=_REQUIRES,
            provides=_PROVIDES,
            defaults=_WISHES,
            paper="arXiv:2510.06303",
        ),
        Component(
            kind="sdar-moe",
            target="dare_sdar.adapter:SdarMoeAdapter",
            config="dare_sdar.config:SdarMoeSection",
            summary="SDAR-30B-A3B Chat and fresh models of that architecture",
            requires=_REQUIRES,
            provides=_PROVIDES,
            defaults=_WISHES,
            paper="arXiv:2510.06303",
        ),
    ]


@hookimpl
def dare_detect_model(config: Mapping[str, Any]) -> str | None:
    """SDAR by its model type or class name."""
    architectures = config.get("architectures") or ()
    for model_type, (architecture, kind) in _KINDS.items():
        if config.get("model_type") == model_type or architecture in architectures:
            return kind
    return None
