"""LLaDA2 on transformers' Glm4Moe classes, made block-causal.

"LLaDA2.0: Scaling Up Diffusion Language Models to 100B", arXiv:2512.15745. The library's architecture is the same
function: query and key norms per head, rotation of the first part of a head, sigmoid routing in float32 with
groups and a bias that only selects, an ungated shared expert, dense first layers. Logits at a position predict
the token at that position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from dare_core.backbones.stock import LayerParts, StockAdapter
from dare_core.backbones.text import TokenizerCodec, read_tokenizer
from dare_core.backbones.weights import WeightLayout
from dare_core.interfaces import TextCodec
from dare_core.types import ModelFacts
from dare_llada2.template import CHAT_TEMPLATE, ROLES
from dare_llada2.weights import EMBEDDING, layer_parts

if TYPE_CHECKING:
    from dare_core.spec.sections import ModelSection

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


class Llada2Adapter(StockAdapter):
    """See :class:`dare_core.backbones.stock.StockAdapter`."""

    library: ClassVar[tuple[Callable[..., Any], Callable[..., nn.Module]]] = (Glm4MoeConfig, Glm4MoeForCausalLM)
    config_keys: ClassVar[tuple[str, ...]] = (
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
        "partial_rotary_factor",
        "rms_norm_eps",
        "max_position_embeddings",
        "head_dim",
        "attention_bias",
        "use_qk_norm",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
    )
    defaults: ClassVar[Mapping[str, Any]] = {"max_position_embeddings": 32768}
    identity: ClassVar[tuple[str, str]] = ("LLaDA2MoeModelLM", "llada2_moe")
    lora_targets: ClassVar[dict[str, Sequence[str] | str]] = {
        "default": _ATTENTION,
        "attention": _ATTENTION,
        "mlp": ("gate_proj", "up_proj", "down_proj"),
        "experts": ("experts.gate_up_proj", "experts.down_proj"),
    }
    lora_names: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "query_key_value": ("q_proj", "k_proj", "v_proj"),
        "dense": "o_proj",
    }
    wrap_units: ClassVar[tuple[str, ...]] = ("Glm4MoeDecoderLayer",)

    @classmethod
    def build_module(cls, published: Mapping[str, Any]) -> nn.Module:
        """See the base class. Choices that the published code has built in are made whatever its keys say."""
        return super().build_module(
            {
                **published,
                "head_dim": published.get("head_dim") or published["hidden_size"] // published["num_attention_heads"],
                "attention_bias": bool(published.get("use_qkv_bias")),
                "use_qk_norm": True,
                "n_routed_experts": published["num_experts"],
                "n_shared_experts": published["num_shared_experts"],
                # Weights of several experts are normalised, that of a single one is not.
                "norm_topk_prob": published["num_experts_per_tok"] > 1,
            }
        )

    @classmethod
    def layer_parts(cls, published: Mapping[str, Any], layer: int) -> LayerParts:
        """See the base class."""
        return layer_parts(published, layer)

    @classmethod
    def weight_layout(cls, published: Mapping[str, Any]) -> WeightLayout:
        """See the base class; the embedding has a name of its own."""
        ours, theirs = EMBEDDING
        return {theirs if key == ours else key: parts for key, parts in super().weight_layout(published).items()}

    @classmethod
    def restore_buffers(cls, module: Any, device: torch.device) -> None:
        """See the base class. Routing biases start at zero, in float32."""
        super().restore_buffers(module, device)
        for part in module.modules():
            if hasattr(part, "e_score_correction_bias"):
                shape = part.e_score_correction_bias.shape
                part.e_score_correction_bias = torch.zeros(shape, dtype=torch.float32, device=device)

    @classmethod
    def build_text(cls, section: ModelSection, facts: ModelFacts) -> TextCodec:
        """Answers end with ``<|role_end|>`` where its id is told, else with the first end token."""
        tokenizer = read_tokenizer(Path(section.tokenizer or section.path or ""))
        end = facts.extra_ids.get("eot", facts.eos_ids[0])
        return TokenizerCodec(tokenizer, facts, end_id=end, template=CHAT_TEMPLATE, roles=ROLES)
