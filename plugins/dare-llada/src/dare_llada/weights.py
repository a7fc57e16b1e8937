"""Where LLaDA's published tensors live in transformers' Llama classes, and config keys likewise.

``ff_proj`` is the gate, ``up_proj`` the up projection. ``ff_out`` names two things: the down projection of a
block, and at the top the output head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_core.backbones.weights import Part, WeightLayout

#: published block member -> module name within a decoder layer
BLOCK = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}


def weight_layout(published: Mapping[str, Any]) -> WeightLayout:
    """Published key -> parameter; the head is left out where it is tied to the embedding."""
    layout = {"model.transformer.wte.weight": [Part("model.embed_tokens.weight")]}
    for block in range(int(published["n_layers"])):
        for theirs, ours in BLOCK.items():
            layout[f"model.transformer.blocks.{block}.{theirs}.weight"] = [Part(f"model.layers.{block}.{ours}.weight")]
    layout["model.transformer.ln_f.weight"] = [Part("model.norm.weight")]
    if not tied(published):
        layout["model.transformer.ff_out.weight"] = [Part("lm_head.weight")]
    return layout


def tied(published: Mapping[str, Any]) -> bool:
    """Whether head and embedding are one tensor; the published default of an absent key is True."""
    return bool(published.get("weight_tying", True))


def kv_heads(published: Mapping[str, Any]) -> int:
    """Key-value heads: ``n_kv_heads``, else 1 with ``multi_query_attention``, else one per query head."""
    if published.get("n_kv_heads") is not None:
        return int(published["n_kv_heads"])
    return 1 if published.get("multi_query_attention") else int(published["n_heads"])


def feed_forward_width(published: Mapping[str, Any]) -> int:
    """Width of the gated MLP: ``mlp_hidden_size``, else ``mlp_ratio`` times ``d_model``."""
    width = published.get("mlp_hidden_size")
    return int(width) if width is not None else int(published.get("mlp_ratio", 4)) * int(published["d_model"])
