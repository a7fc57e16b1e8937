"""What dare-llada offers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dare_core.api import Component, hookimpl

_REQUIRES = ("torch", "transformers", "safetensors", "tokenizers", "jinja2")
_PROVIDES = frozenset({"masked", "token-logp", "mask-token", "kv-approx", "value-head"})


@hookimpl
def dare_model_adapters() -> Iterable[Component]:
    """The LLaDA family: dense models, and the mixture of experts."""
    return [
        Component(
            kind="llada",
            target="dare_llada.adapter:LladaAdapter",
            config="dare_llada.config:LladaSection",
            summary="LLaDA-8B-Base, LLaDA-8B-Instruct, LLaDA-1.5 and fresh models of that architecture",
            requires=_REQUIRES,
            provides=_PROVIDES,
            paper="arXiv:2502.09992",
        ),
        Component(
            kind="llada-moe",
            target="dare_llada.moe.adapter:LladaMoeAdapter",
            config="dare_llada.moe.config:LladaMoeSection",
            summary="LLaDA-MoE-7B-A1B-Base, -Instruct and fresh models of that architecture",
            requires=_REQUIRES,
            provides=_PROVIDES,
            paper="arXiv:2509.24389",
        ),
    ]


@hookimpl
def dare_detect_model(config: Mapping[str, Any]) -> str | None:
    """By class name or model type. Mixtures are published with the dense models' type too, so experts decide."""
    names = [str(name) for name in config.get("architectures") or ()]
    kind = config.get("model_type")
    if kind == "lladamoe" or any(name.startswith("LLaDAMoE") for name in names):
        return "llada-moe"
    if kind == "llada" and config.get("num_experts"):
        return "llada-moe"
    return "llada" if kind == "llada" or "LLaDAModelLM" in names else None
