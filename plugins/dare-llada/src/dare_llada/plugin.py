"""What dare-llada offers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dare_core.api import Component, hookimpl


@hookimpl
def dare_model_adapters() -> Iterable[Component]:
    """The LLaDA family."""
    return [
        Component(
            kind="llada",
            target="dare_llada.adapter:LladaAdapter",
            config="dare_llada.config:LladaSection",
            summary="LLaDA-8B-Base, LLaDA-8B-Instruct, LLaDA-1.5 and fresh models of that architecture",
            requires=("torch", "transformers", "safetensors", "tokenizers", "jinja2"),
            provides=frozenset({"masked", "token-logp"}),
            paper="arXiv:2502.09992",
        )
    ]


@hookimpl
def dare_detect_model(config: Mapping[str, Any]) -> str | None:
    """LLaDA by its model type or class name."""
    architectures = config.get("architectures") or ()
    return "llada" if config.get("model_type") == "llada" or "LLaDAModelLM" in architectures else None
