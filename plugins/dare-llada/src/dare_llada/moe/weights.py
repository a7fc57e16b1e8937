"""Where LLaDA-MoE's published tensors live in transformers' Qwen3Moe classes.

Names are the library's, but for the shared expert, which is published as a sibling of ``mlp``, and the routing
bias, published beside the router. Experts are published one by one and stacked in memory, gate above up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dare_core.backbones.stock import MLP, LayerParts, expert_parts, same_names
from dare_core.backbones.weights import Part


def layer_parts(published: Mapping[str, Any], layer: int) -> LayerParts:
    """Members of one layer: a mixture of experts, or dense where ``moe_layer_freq`` is 0."""
    parts: dict[str, Sequence[Part]] = dict(same_names(_attention(published)))
    if not published["moe_layer_freq"][layer]:
        return parts | dict(same_names(MLP))
    parts |= same_names(("mlp.gate.weight",))
    parts |= expert_parts(int(published["num_experts"]), int(published["expert_intermediate_size"]))
    if published.get("moe_router_enable_expert_bias"):
        parts["mlp.expert_bias"] = [Part("mlp.gate.expert_bias")]
    if published.get("shared_expert_intermediate_size") is not None:
        shared = [name.replace("mlp.", "shared_expert.", 1) for name in MLP]
        parts |= {name: [Part(f"mlp.{name}")] for name in shared}
    return parts


def _attention(published: Mapping[str, Any]) -> Iterator[str]:
    yield "input_layernorm.weight"
    yield "post_attention_layernorm.weight"
    for projection in "qkvo":
        yield f"self_attn.{projection}_proj.weight"
        if published.get("attention_bias"):
            yield f"self_attn.{projection}_proj.bias"
    if published.get("qk_layernorm"):
        yield "self_attn.q_norm.weight"
        yield "self_attn.k_norm.weight"
