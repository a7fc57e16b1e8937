"""Where published tensors live in the module: one copy of what encoder and decoder share, both copies of the scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare_core.backbones.weights import Part, WeightLayout
from dare_diffusion_gemma.module import held_name, library_config, vision_shapes

_MLP = ("gate_proj", "up_proj", "down_proj")
_LAYER = (
    *(
        f"{name}.weight"
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "pre_feedforward_layernorm_2",
            "post_feedforward_layernorm",
            "post_feedforward_layernorm_1",
            "post_feedforward_layernorm_2",
            *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "o_proj", "q_norm", "k_norm")),
            *(f"mlp.{name}" for name in _MLP),
            "router.proj",
        )
    ),
    "router.scale",
    "router.per_expert_scale",
    "experts.gate_up_proj",
    "experts.down_proj",
)


def published_layout(published: Mapping[str, Any]) -> WeightLayout:
    """Published key -> part of the module. Layers with full attention take keys as values and have no ``v_proj``."""
    layout: dict[str, Sequence[Part]] = {}
    for name in ("embed_tokens.weight", "norm.weight"):
        layout[f"model.decoder.{name}"] = [Part(f"model.{name}")]
    for name in ("pre_norm.weight", *(f"{name}.weight" for name in _MLP)):
        layout[f"model.decoder.self_conditioning.{name}"] = [Part(f"model.self_conditioning.{name}")]
    for number, kind in enumerate(library_config(published).text_config.layer_types):
        own = ("self_attn.v_proj.weight",) if kind == "sliding_attention" else ()
        for name in (*_LAYER, *own):
            layout[f"model.decoder.layers.{number}.{name}"] = [Part(f"model.layers.{number}.{name}")]
        layout[f"model.decoder.layers.{number}.layer_scalar"] = [Part(f"model.scales.noisy{number}")]
        layout[f"model.encoder.language_model.layers.{number}.layer_scalar"] = [Part(f"model.scales.clean{number}")]
    for key in vision_shapes(published):
        layout[key] = [Part(f"vision.{held_name(key)}")]
    return layout
