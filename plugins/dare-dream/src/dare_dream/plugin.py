"""What dare-dream offers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dare_core.api import Component, hookimpl


@hookimpl
def dare_model_adapters() -> Iterable[Component]:
    """The Dream family."""
    return [
        Component(
            kind="dream",
            target="dare_dream.adapter:DreamAdapter",
            config="dare_dream.config:DreamSection",
            summary="Dream-v0-Base-7B, Dream-v0-Instruct-7B, DiffuCoder and fresh models of that architecture",
            requires=("torch", "transformers", "safetensors", "tokenizers", "jinja2"),
            provides=frozenset({"masked", "token-logp", "mask-token", "kv-approx", "value-head"}),
            # The published sampler, with the order that the model card recommends; its code's default is `origin`.
            defaults={"rollout.selection.kind": "entropy", "rollout.schedule": "linear-time"},
            paper="arXiv:2508.15487",
        )
    ]


@hookimpl
def dare_detect_model(config: Mapping[str, Any]) -> str | None:
    """Dream by its model type or class name."""
    architectures = config.get("architectures") or ()
    return "dream" if config.get("model_type") == "Dream" or "DreamModel" in architectures else None
