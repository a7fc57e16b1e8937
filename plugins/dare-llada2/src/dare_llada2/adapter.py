"""LLaDA2 on transformers' Glm4Moe classes, made block-causal.

"LLaDA2.0: Scaling Up Diffusion Language Models to 100B", arXiv:2512.15745. The library's architecture is the same
function: query and key norms per head, rotation of the first part of a head, sigmoid routing in float32 with
groups and a bias that only selects, an ungated shared expert, dense first layers. Logits at a position predict
the token at that position.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from dare_core.backbones.adapter import TransformerAdapter
from dare_core.backbones.attention import ATTENTION
from dare_core.backbones.experts import EXPERTS
from dare_core.backbones.text import TokenizerCodec, read_tokenizer
from dare_core.backbones.weights import WeightLayout
from dare_core.interfaces import TextCodec
from dare_core.types import ModelFacts
from dare_llada2 import weights
from dare_llada2.template import CHAT_TEMPLATE

if TYPE_CHECKING:
    from dare_core.spec.sections import ModelSection

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
#: config keys that the library's class has under the same name
_SAME_NAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "first_k_dense_replace",
    "routed_scaling_factor",
    "rms_norm_eps",
)


class Llada2Adapter(TransformerAdapter):
    """See :class:`dare_core.backbones.adapter.TransformerAdapter`."""

    lora_targets: ClassVar[dict[str, Sequence[str] | str]] = {"default": _ATTENTION, "attention": _ATTENTION}
    lora_names: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "query_key_value": ("q_proj", "k_proj", "v_proj"),
        "dense": "o_proj",
    }
    wrap_units: ClassVar[tuple[str, ...]] = ("Glm4MoeDecoderLayer",)

    @classmethod
    def build_module(cls, published: Mapping[str, Any]) -> nn.Module:
        """See the base class."""
        heads = published["num_attention_heads"]
        rope = {
            "rope_type": "default",
            "rope_theta": float(published["rope_theta"]),
            "partial_rotary_factor": float(published["partial_rotary_factor"]),
        }
        settings: dict[str, Any] = {name: published[name] for name in _SAME_NAME} | {
            "head_dim": published.get("head_dim") or published["hidden_size"] // heads,
            "hidden_act": "silu",
            "max_position_embeddings": published.get("max_position_embeddings") or 32768,
            "rope_parameters": rope,
            "attention_bias": bool(published.get("use_qkv_bias")),
            "use_qk_norm": True,
            "n_routed_experts": published["num_experts"],
            "n_shared_experts": published["num_shared_experts"],
            # The published code normalises except for a single expert, whatever norm_topk_prob says.
            "norm_topk_prob": published["num_experts_per_tok"] > 1,
            "tie_word_embeddings": bool(published.get("tie_word_embeddings")),
            "num_mtp_layers": 0,
            "use_cache": False,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            "attn_implementation": ATTENTION,
            "experts_implementation": EXPERTS,
        }
        module = Glm4MoeForCausalLM(Glm4MoeConfig(**settings))
        for layer in module.model.layers:
            layer.self_attn.is_causal = False
        return module

    @classmethod
    def restore_buffers(cls, module: Any, device: torch.device) -> None:
        """Build the rotary module again, whose frequencies stay in float32, and start routing biases at zero."""
        rotary = module.model.rotary_emb
        module.model.rotary_emb = type(rotary)(rotary.config).to(device)
        for part in module.modules():
            if hasattr(part, "e_score_correction_bias"):
                shape = part.e_score_correction_bias.shape
                part.e_score_correction_bias = torch.zeros(shape, dtype=torch.float32, device=device)

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
        return {"architectures": ["LLaDA2MoeModelLM"], "model_type": "llada2_moe", **published}

    @classmethod
    def build_text(cls, section: ModelSection, facts: ModelFacts) -> TextCodec:
        """Answers end with ``<|role_end|>`` where its id is told, else with the first end token."""
        tokenizer = read_tokenizer(Path(section.tokenizer or section.path or ""))
        return TokenizerCodec(
            tokenizer,
            facts,
            end_id=facts.extra_ids.get("role_end", facts.eos_ids[0]),
            template=CHAT_TEMPLATE,
            roles=("system", "user", "assistant", "tool"),
        )

    def describe(self) -> dict[str, Any]:
        """See the interface."""
        return super().describe() | {"experts": EXPERTS, "block_length": self.facts.layout.block_length}
