"""Where LLaDA-MoE's published tensors live in transformers' Qwen3Moe classes.

Names are mostly the library's. Experts are published one by one and stacked in memory, gate above up; the shared
expert is published as a sibling of ``mlp`` and the routing bias beside the router.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dare_core.backbones.weights import Part, WeightLayout

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def weight_layout(published: Mapping[str, Any], *, stacked: bool = False) -> WeightLayout:
    """Published key -> parts, with experts one by one or stacked; the head is left out where it is tied."""
    names = ["model.embed_tokens.weight"]
    layout = {name: [Part(name)] for name in names}
    for number, is_routed in enumerate(published["moe_layer_freq"]):
        layer = f"model.layers.{number}."
        layout |= {layer + name: [Part(layer + name)] for name in _layer_names(published)}
        if is_routed:
            layout |= dict(_mixture(layer, published, stacked))
        else:
            layout |= {f"{layer}mlp.{p}.weight": [Part(f"{layer}mlp.{p}.weight")] for p in _PROJECTIONS}
    layout["model.norm.weight"] = [Part("model.norm.weight")]
    if not published.get("tie_word_embeddings"):
        layout["lm_head.weight"] = [Part("lm_head.weight")]
    return layout


def _layer_names(published: Mapping[str, Any]) -> Iterator[str]:
    yield "input_layernorm.weight"
    yield "post_attention_layernorm.weight"
    for projection in "qkvo":
        yield f"self_attn.{projection}_proj.weight"
        if published.get("attention_bias"):
            yield f"self_attn.{projection}_proj.bias"
    if published.get("qk_layernorm"):
        yield "self_attn.q_norm.weight"
        yield "self_attn.k_norm.weight"


def _mixture(layer: str, published: Mapping[str, Any], stacked: bool) -> Iterator[tuple[str, list[Part]]]:
    experts, width = f"{layer}mlp.experts.", int(published["expert_intermediate_size"])
    gate, up = slice(0, width), slice(width, 2 * width)
    yield f"{layer}mlp.gate.weight", [Part(f"{layer}mlp.gate.weight")]
    if published.get("moe_router_enable_expert_bias"):
        yield f"{layer}mlp.expert_bias", [Part(f"{layer}mlp.gate.expert_bias")]
    if stacked:
        every = slice(None)
        yield f"{experts}gate_proj", [Part(f"{experts}gate_up_proj", (every, gate))]
        yield f"{experts}up_proj", [Part(f"{experts}gate_up_proj", (every, up))]
        yield f"{experts}down_proj", [Part(f"{experts}down_proj")]
    for expert in range(0 if stacked else int(published["num_experts"])):
        yield f"{experts}{expert}.gate_proj.weight", [Part(f"{experts}gate_up_proj", (expert, gate))]
        yield f"{experts}{expert}.up_proj.weight", [Part(f"{experts}gate_up_proj", (expert, up))]
        yield f"{experts}{expert}.down_proj.weight", [Part(f"{experts}down_proj", (expert,))]
    if published.get("shared_expert_intermediate_size") is not None:
        for projection in _PROJECTIONS:
            name = f"shared_expert.{projection}.weight"
            yield layer + name, [Part(f"{layer}mlp.{name}")]


def is_stacked(keys: Collection[str]) -> bool:
    """Whether a folder with these tensors holds stacked experts."""
    return any(key.endswith(".mlp.experts.gate_proj") for key in keys)
