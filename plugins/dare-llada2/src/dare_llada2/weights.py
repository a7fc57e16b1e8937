"""Where LLaDA2's published tensors live in transformers' Glm4Moe classes.

``query_key_value`` holds all query heads, then all key heads, then all value heads. Experts are published one by
one and stacked in memory, gate above up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare_core.backbones.stock import MLP, LayerParts, expert_parts, same_names
from dare_core.backbones.weights import Part

#: published member -> members of the module's layer, in the order of the published rows
_RENAMED = {
    "attention.query_key_value.weight": tuple(f"self_attn.{name}_proj.weight" for name in "qkv"),
    "attention.query_layernorm.weight": ("self_attn.q_norm.weight",),
    "attention.key_layernorm.weight": ("self_attn.k_norm.weight",),
    "attention.dense.weight": ("self_attn.o_proj.weight",),
}
_QKV_BIAS = {"attention.query_key_value.bias": tuple(f"self_attn.{name}_proj.bias" for name in "qkv")}
_ROUTER = {"mlp.gate.expert_bias": ("mlp.gate.e_score_correction_bias",)}
_SHARED = tuple(name.replace("mlp.", "mlp.shared_experts.", 1) for name in MLP)
EMBEDDING = ("model.embed_tokens.weight", "model.word_embeddings.weight")


def layer_parts(published: Mapping[str, Any], layer: int) -> LayerParts:
    """Members of one layer: dense ones come first, then mixtures of experts."""
    parts: dict[str, Sequence[Part]] = dict(same_names(("input_layernorm.weight", "post_attention_layernorm.weight")))
    parts |= _renamed(_RENAMED)
    if published.get("use_qkv_bias"):
        parts |= _renamed(_QKV_BIAS)
    if layer < int(published["first_k_dense_replace"]):
        return parts | dict(same_names(MLP))
    parts |= {**same_names(("mlp.gate.weight",)), **_renamed(_ROUTER)}
    parts |= expert_parts(int(published["num_experts"]), int(published["moe_intermediate_size"]))
    return parts | dict(same_names(_SHARED))


def _renamed(names: Mapping[str, Sequence[str]]) -> dict[str, Sequence[Part]]:
    return {theirs: [Part(name) for name in ours] for theirs, ours in names.items()}
