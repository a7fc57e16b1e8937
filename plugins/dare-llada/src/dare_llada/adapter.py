"""LLaDA on transformers' Llama classes, made bidirectional.

Nie et al., "Large Language Diffusion Models", arXiv:2502.09992. Logits at a position predict the token at that
position. RoPE is applied in float32 (``rope_full_precision``): the rotary module returns float32 angles, so the
library's rotation is computed in float32, and attention casts queries and keys back to the values' dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from dare_core.backbones.adapter import TransformerAdapter
from dare_core.backbones.attention import ATTENTION
from dare_core.backbones.text import TokenizerCodec, read_tokenizer
from dare_core.backbones.weights import WeightLayout
from dare_core.interfaces import TextCodec
from dare_core.types import ModelFacts
from dare_llada import weights
from dare_llada.config import vocabulary_rows
from dare_llada.template import CHAT_TEMPLATE

if TYPE_CHECKING:
    from dare_core.spec.sections import ModelSection


class FullPrecisionRotary(LlamaRotaryEmbedding):
    """Rotary angles in float32 at least, whatever the activations' dtype."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [1,T,D] of ``position_ids`` [1,T]."""
        wide = torch.empty(0, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        cos, sin = super().forward(wide, position_ids)
        return cos, sin


class LladaAdapter(TransformerAdapter):
    """See :class:`dare_core.backbones.adapter.TransformerAdapter`."""

    lora_targets: ClassVar[dict[str, Sequence[str] | str]] = {
        "default": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
        "mlp": ("gate_proj", "up_proj", "down_proj"),
    }
    lora_names: ClassVar[Mapping[str, str]] = {"attn_out": "o_proj", "ff_proj": "gate_proj", "ff_out": "down_proj"}
    wrap_units: ClassVar[tuple[str, ...]] = ("LlamaDecoderLayer",)

    @classmethod
    def build_module(cls, published: Mapping[str, Any]) -> nn.Module:
        """See the base class."""
        settings: dict[str, Any] = {
            "vocab_size": vocabulary_rows(published),
            "hidden_size": published["d_model"],
            "intermediate_size": weights.feed_forward_width(published),
            "num_hidden_layers": published["n_layers"],
            "num_attention_heads": published["n_heads"],
            "num_key_value_heads": weights.kv_heads(published),
            "hidden_act": "silu",
            "rms_norm_eps": published.get("rms_norm_eps", 1e-5),
            "rope_parameters": {"rope_type": "default", "rope_theta": float(published.get("rope_theta", 10000.0))},
            "max_position_embeddings": published.get("max_sequence_length", 1024),
            "tie_word_embeddings": weights.tied(published),
            "use_cache": False,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            "attn_implementation": ATTENTION,
        }
        config = LlamaConfig(**settings)
        module = LlamaForCausalLM(config)
        if published.get("rope_full_precision", True):
            module.model.rotary_emb = FullPrecisionRotary(config)
        for layer in module.model.layers:
            layer.self_attn.is_causal = False
        return module

    @classmethod
    def restore_buffers(cls, module: Any, device: torch.device) -> None:
        """Build the rotary module again: its frequencies are computed, and stay in float32."""
        rotary = module.model.rotary_emb
        module.model.rotary_emb = type(rotary)(rotary.config).to(device)

    @classmethod
    def weight_layout(cls, published: Mapping[str, Any]) -> WeightLayout:
        """See the base class."""
        return weights.weight_layout(published)

    @classmethod
    def fresh_std(cls, published: Mapping[str, Any], parameter: str) -> float | None:
        """``init_std`` for every matrix, whatever ``init_fn`` says; scales of norms start at 1."""
        return None if "norm" in parameter else float(published.get("init_std", 0.02))

    @classmethod
    def complete_config(cls, published: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the base class."""
        return {"architectures": ["LLaDAModelLM"], "model_type": "llada", **published}

    @classmethod
    def build_text(cls, section: ModelSection, facts: ModelFacts) -> TextCodec:
        """Chat answers end with ``<|eot_id|>``; models without it end with the first end token."""
        tokenizer = read_tokenizer(Path(section.tokenizer or section.path or ""))
        return TokenizerCodec(
            tokenizer, facts, end_id=facts.extra_ids.get("eot", facts.eos_ids[0]), template=CHAT_TEMPLATE
        )
