"""LLaDA-MoE on transformers' Qwen3Moe classes, made bidirectional.

Zhu et al., "LLaDA-MoE: A Sparse MoE Diffusion Language Model", arXiv:2509.24389. Logits at a position predict the
token at that position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from dare_core.backbones.stock import LayerParts, StockAdapter
from dare_core.backbones.text import TokenizerCodec, read_tokenizer
from dare_core.interfaces import TextCodec
from dare_core.types import ModelFacts
from dare_llada.moe.module import BiasedRouter, ClippedAttention, SharedExpertBlock
from dare_llada.moe.weights import layer_parts

if TYPE_CHECKING:
    from dare_core.spec.sections import ModelSection

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


class LladaMoeAdapter(StockAdapter):
    """See :class:`dare_core.backbones.stock.StockAdapter`."""

    library: ClassVar[tuple[Callable[..., Any], Callable[..., nn.Module]]] = (Qwen3MoeConfig, Qwen3MoeForCausalLM)
    config_keys: ClassVar[tuple[str, ...]] = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "attention_bias",
        "num_experts",
        "num_experts_per_tok",
        "norm_topk_prob",
        "mlp_only_layers",
    )
    defaults: ClassVar[Mapping[str, Any]] = {"max_position_embeddings": 8192}
    identity: ClassVar[tuple[str, str]] = ("LLaDAMoEModelLM", "lladamoe")
    lora_targets: ClassVar[dict[str, Sequence[str] | str]] = {
        "default": _ATTENTION,
        "attention": _ATTENTION,
        "experts": ("experts.gate_up_proj", "experts.down_proj"),
    }
    wrap_units: ClassVar[tuple[str, ...]] = ("Qwen3MoeDecoderLayer",)

    @classmethod
    def build_module(cls, published: Mapping[str, Any]) -> nn.Module:
        """See the base class."""
        routed, width = published["moe_layer_freq"], published["expert_intermediate_size"]
        module = super().build_module(
            {
                **published,
                "intermediate_size": published.get("dense_intermediate_size") or width,
                "moe_intermediate_size": width,
                "head_dim": published["hidden_size"] // published["num_attention_heads"],
                "norm_topk_prob": False,
                "mlp_only_layers": [number for number, is_routed in enumerate(routed) if not is_routed],
            }
        )
        _use_options(module, published)
        return module

    @classmethod
    def layer_parts(cls, published: Mapping[str, Any], layer: int) -> LayerParts:
        """See the base class."""
        return layer_parts(published, layer)

    @classmethod
    def restore_buffers(cls, module: Any, device: torch.device) -> None:
        """See the base class. Routing biases start at zero, in float32."""
        super().restore_buffers(module, device)
        for part in module.modules():
            if isinstance(part, BiasedRouter):
                part.expert_bias = torch.zeros(part.num_experts, dtype=torch.float32, device=device)

    @classmethod
    def build_text(cls, section: ModelSection, facts: ModelFacts) -> TextCodec:
        """Answers end with the first end token; chat prompts need a template in the tokenizer folder."""
        tokenizer = read_tokenizer(Path(section.tokenizer or section.path or ""))
        end = facts.extra_ids.get("eot", facts.eos_ids[0])
        return TokenizerCodec(tokenizer, facts, end_id=end)


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
