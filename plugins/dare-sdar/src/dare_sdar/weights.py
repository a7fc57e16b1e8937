"""Which layers of an SDAR checkpoint have experts, and how their tensors are published.

Dense layers have the keys of the library's class. An expert layer is published as a router
``mlp.gate.weight`` and three matrices per expert; the library holds them stacked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_core.backbones.stock import MLP, LayerParts, expert_parts, same_names

#: members of a layer beside its MLP
ATTENTION = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
)


def dense_layer() -> LayerParts:
    """A layer with a gated MLP."""
    return same_names((*ATTENTION, *MLP))


def mixed_layer(published: Mapping[str, Any], layer: int) -> LayerParts:
    """A layer of a mixture of experts: dense if it is listed in ``mlp_only_layers`` or skipped by the sparse step."""
    sparse_step = published.get("decoder_sparse_step") or 1
    if layer in (published.get("mlp_only_layers") or ()) or (layer + 1) % sparse_step:
        return dense_layer()
    experts = expert_parts(int(published["num_experts"]), int(published["moe_intermediate_size"]))
    return {**same_names((*ATTENTION, "mlp.gate.weight")), **experts}
