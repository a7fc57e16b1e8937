"""What dare-diffusion-gemma offers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dare_core.api import Component, Problem, Slot, UserError, hookimpl
from dare_core.diffusion.rules import find_rule
from dare_core.types.decoding import SelectionRule

if TYPE_CHECKING:
    from dare_core.spec.plan import RunPlan

_KIND = "diffusion-gemma"
#: the published sampler: at most 48 steps per canvas, proposals drawn from the cooling distribution
_DECODING = {
    "rollout.selection.kind": "entropy-renoise",
    "rollout.schedule": "anew",
    "rollout.steps_per_block": 48,
    "rollout.temperature": 1.0,
    "rollout.whole_blocks": True,
    "rollout.eos_rule": "stop",
}


@hookimpl
def dare_model_adapters() -> Iterable[Component]:
    """DiffusionGemma, text only."""
    return [
        Component(
            kind=_KIND,
            target="dare_diffusion_gemma.adapter:DiffusionGemmaAdapter",
            config="dare_diffusion_gemma.config:DiffusionGemmaSection",
            summary="DiffusionGemma-26B-A4B and fresh models of that architecture: uniform noise, text only",
            requires=("torch", "transformers", "safetensors", "tokenizers", "jinja2"),
            provides=frozenset({"block", "token-logp", "kv-exact"}),
            defaults=_DECODING,
            stability="experimental",
        )
    ]


@hookimpl
def dare_detect_model(config: Mapping[str, Any]) -> str | None:
    """DiffusionGemma by its model type or class name."""
    known = config.get("model_type") == "diffusion_gemma"
    return _KIND if known or "DiffusionGemmaForBlockDiffusion" in (config.get("architectures") or ()) else None


@hookimpl
def dare_check_run(plan: RunPlan) -> Iterable[Problem]:
    """Decoding must be by a rule for uniform noise."""
    if Slot.MODEL not in plan or Slot.ROLLOUT not in plan or plan.facts is None or plan.facts.kind != _KIND:
        return []
    selection = getattr(plan[Slot.ROLLOUT].config, "selection", None)
    try:
        rule = None if selection is None else find_rule(SelectionRule(selection.kind, dict(selection.options)))
    except UserError:
        return []
    if rule is None or rule.noise == "uniform":
        return []
    message = f"selection rule {rule.kind!r} commits masked positions, and this model has no mask token"
    return [Problem(message, "rollout.selection.kind", hint="take 'entropy-renoise'")]
