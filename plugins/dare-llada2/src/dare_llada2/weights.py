"""Where LLaDA2's published tensors live in transformers' Glm4Moe classes.

``query_key_value`` holds all query heads, then all key heads, then all value heads. Experts are published one by
one and stacked in memory, gate above up. The *stacked form* of training exports has ``mlp.experts.gate_proj``,
``up_proj`` and ``down_proj`` with a leading expert dimension; it is read too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dare_core.backbones.weights import Part, WeightLayout

#: published member of every decoder layer -> members of the module's
_LAYER = {
    "input_layernorm.weight": ("input_layernorm.weight",),
    "post_attention_layernorm.weight": ("post_attention_layernorm.weight",),
    "attention.query_key_value.weight": (
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
    ),
    "attention.query_layernorm.weight": ("self_attn.q_norm.weight",),
    "attention.key_layernorm.weight": ("self_attn.k_norm.weight",),
    "attention.dense.weight": ("self_attn.o_proj.weight",),
}
_QKV_BIAS = "attention.query_key_value.bias"
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def weight_layout(published: Mapping[str, Any], *, stacked: bool = False) -> WeightLayout:
    """Published key -> parts, with experts one by one or stacked; the head is left out where it is tied."""
    layout = {"model.word_embeddings.weight": [Part("model.embed_tokens.weight")]}
    for number in range(int(published["num_hidden_layers"])):
        theirs = ours = f"model.layers.{number}."
        members = dict(_LAYER)
        if published.get("use_qkv_bias"):
            members[_QKV_BIAS] = tuple(f"self_attn.{name}_proj.bias" for name in "qkv")
        for key, names in members.items():
            layout[theirs + key] = [Part(ours + name) for name in names]
        if number < int(published["first_k_dense_replace"]):
            layout |= {f"{theirs}mlp.{p}.weight": [Part(f"{ours}mlp.{p}.weight")] for p in _PROJECTIONS}
            continue
        layout[f"{theirs}mlp.gate.weight"] = [Part(f"{ours}mlp.gate.weight")]
        layout[f"{theirs}mlp.gate.expert_bias"] = [Part(f"{ours}mlp.gate.e_score_correction_bias")]
        layout.update(_experts(f"{theirs}mlp.experts.", f"{ours}mlp.experts.", published, stacked))
        shared = "mlp.shared_experts."
        layout |= {f"{theirs}{shared}{p}.weight": [Part(f"{ours}{shared}{p}.weight")] for p in _PROJECTIONS}
    layout["model.norm.weight"] = [Part("model.norm.weight")]
    if not published.get("tie_word_embeddings"):
        layout["lm_head.weight"] = [Part("lm_head.weight")]
    return layout


def _experts(theirs: str, ours: str, published: Mapping[str, Any], stacked: bool) -> Iterator[tuple[str, list[Part]]]:
    width = int(published["moe_intermediate_size"])
    gate, up = slice(0, width), slice(width, 2 * width)
    if stacked:
        every = slice(None)
        yield f"{theirs}gate_proj", [Part(f"{ours}gate_up_proj", (every, gate))]
        yield f"{theirs}up_proj", [Part(f"{ours}gate_up_proj", (every, up))]
        yield f"{theirs}down_proj", [Part(f"{ours}down_proj")]
        return
    for expert in range(int(published["num_experts"])):
        yield f"{theirs}{expert}.gate_proj.weight", [Part(f"{ours}gate_up_proj", (expert, gate))]
        yield f"{theirs}{expert}.up_proj.weight", [Part(f"{ours}gate_up_proj", (expert, up))]
        yield f"{theirs}{expert}.down_proj.weight", [Part(f"{ours}down_proj", (expert,))]


def is_stacked(keys: Collection[str]) -> bool:
    """Whether a folder with these tensors holds stacked experts."""
    return any(key.endswith(".mlp.experts.gate_proj") for key in keys)
