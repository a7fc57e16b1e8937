"""LLaDA-MoE on transformers' Qwen3Moe classes, made bidirectional.

inclusionAI, "LLaDA-MoE-7B-A1B", 2025. Logits at a position predict the token at that position.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from dare_core.backbones.adapter import TransformerAdapter
from dare_core.backbones.attention import ATTENTION
from dare_core.backbones.experts import EXPERTS
from dare_core.backbones.text import TokenizerCodec, read_tokenizer
from dare_core.backbones.weights import WeightLayout
from dare_core.interfaces import TextCodec
from dare_core.types import ModelFacts
from dare_llada.moe import weights
from dare_llada.moe.module import BiasedRouter, ClippedAttention, SharedExpertBlock

if TYPE_CHECKING:
    from dare_core.spec.sections import ModelSection

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


class LladaMoeAdapter(TransformerAdapter):
    """See :class:`dare_core.backbones.adapter.TransformerAdapter`."""

    lora_targets: ClassVar[dict[str, Sequence[str] | str]] = {"default": _ATTENTION, "attention": _ATTENTION}
    wrap_units: ClassVar[tuple[str, ...]] = ("Qwen3MoeDecoderLayer",)

    @classmethod
    def build_module(cls, published: Mapping[str, Any]) -> nn.Module:
        """See the base class."""
        routed = published["moe_layer_freq"]
        settings: dict[str, Any] = {
            "vocab_size": published["vocab_size"],
            "hidden_size": published["hidden_size"],
            "intermediate_size": published.get("dense_intermediate_size") or published["expert_intermediate_size"],
            "moe_intermediate_size": published["expert_intermediate_size"],
            "num_hidden_layers": published["num_hidden_layers"],
            "num_attention_heads": published["num_attention_heads"],
            "num_key_value_heads": published["num_key_value_heads"],
            "head_dim": published["hidden_size"] // published["num_attention_heads"],
            "hidden_act": "silu",
            "max_position_embeddings": published.get("max_position_embeddings") or 8192,
            "rms_norm_eps": published["rms_norm_eps"],
            "rope_parameters": {"rope_type": "default", "rope_theta": float(published["rope_theta"])},
            "attention_bias": bool(published.get("attention_bias")),
            "num_experts": published["num_experts"],
            "num_experts_per_tok": published["num_experts_per_tok"],
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [number for number, is_routed in enumerate(routed) if not is_routed],
            "tie_word_embeddings": bool(published.get("tie_word_embeddings")),
            "use_cache": False,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            "attn_implementation": ATTENTION,
            "experts_implementation": EXPERTS,
        }
        module = Qwen3MoeForCausalLM(Qwen3MoeConfig(**settings))
        _use_options(module, published)
        return module

    @classmethod
    def restore_buffers(cls, module: Any, device: torch.device) -> None:
        """Build the rotary module again, whose frequencies stay in float32, and start routing biases at zero."""
        rotary = module.model.rotary_emb
        module.model.rotary_emb = type(rotary)(rotary.config).to(device)
        for part in module.modules():
            if isinstance(part, BiasedRouter):
                part.expert_bias = torch.zeros(part.num_experts, dtype=torch.float32, device=device)

    @classmethod
    def weight_layout(cls, published: Mapping[str, Any]) -> WeightLayout:
        """See the base class."""
        return weights.weight_layout(published)

    @classmethod
    def folder_layout(cls, published: Mapping[str, Any], keys: Collection[str]) -> WeightLayout:
        """Experts one by one, as published, or stacked."""
        return weights.weight_layout(published, stacked=weights.is_stacked(keys))

    @classmethod
    def fresh_std(cls, published: Mapping[str, Any], parameter: str) -> float | None:
        """``initializer_range`` for every matrix; biases start at 0, scales of norms at 1."""
        if parameter.endswith(".bias"):
            return 0.0
        return None if "norm" in parameter else float(published.get("initializer_range", 0.02))

    @classmethod
    def complete_config(cls, published: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the base class."""
        return {"architectures": ["LLaDAMoEModelLM"], "model_type": "lladamoe", **published}

    @classmethod
    def build_text(cls, section: ModelSection, facts: ModelFacts) -> TextCodec:
        """Answers end with the first end token; chat prompts need a template in the tokenizer folder."""
        tokenizer = read_tokenizer(Path(section.tokenizer or section.path or ""))
        return TokenizerCodec(tokenizer, facts, end_id=facts.eos_ids[0])

    def describe(self) -> dict[str, Any]:
        """See the interface."""
        return super().describe() | {"experts": EXPERTS}


def _use_options(module: Any, published: Mapping[str, Any]) -> None:
    """Put in the parts for what the published config asks beyond the library's class."""
    config, limit = module.config, published.get("clip_qkv")
    norm, shared = bool(published.get("qk_layernorm")), published.get("shared_expert_intermediate_size")
    for number, layer in enumerate(module.model.layers):
        if limit is not None or not norm:
            layer.self_attn = ClippedAttention(config, number, norm=norm, limit=limit)
        layer.self_attn.is_causal = False
        if number in config.mlp_only_layers:
            continue
        if shared is not None:
            layer.mlp = SharedExpertBlock(config, shared)
        if published.get("moe_router_enable_expert_bias"):
            layer.mlp.gate = BiasedRouter(config)
