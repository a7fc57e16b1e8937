"""SDAR on transformers' Qwen3 and Qwen3-MoE classes, with block-causal attention.

Cheng et al., "SDAR: A Synergistic Diffusion-AutoRegression Paradigm", arXiv:2510.06303. A position sees its own
block and all earlier ones; blocks are counted on a row's tokens from its start, prompt included. Logits at a
position predict the token at that position. Queries and keys are normalised per head before rotation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import nn
from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from dare_core.backbones.stock import LayerParts, StockAdapter
from dare_core.backbones.text import read_tokenizer
from dare_core.interfaces import TextCodec
from dare_core.types import ModelFacts
from dare_sdar.config import EXPERTS, REQUIRED, SdarSection
from dare_sdar.text import SdarCodec
from dare_sdar.weights import dense_layer, mixed_layer

if TYPE_CHECKING:
    from dare_core.spec.sections import ModelSection

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


class SdarAdapter(StockAdapter):
    """See :class:`dare_core.backbones.stock.StockAdapter`."""

    library: ClassVar[tuple[Callable[..., Any], Callable[..., nn.Module]]] = (Qwen3Config, Qwen3ForCausalLM)
    config_keys: ClassVar[tuple[str, ...]] = (*REQUIRED, "head_dim", "rms_norm_eps", "max_position_embeddings")
    # Heads times head_dim need not be the hidden size, so head_dim is never derived from it.
    defaults: ClassVar[Mapping[str, Any]] = {"head_dim": 128, "rms_norm_eps": 1e-6}
    identity: ClassVar[tuple[str, str]] = ("SDARForCausalLM", "sdar")
    lora_targets: ClassVar[dict[str, Sequence[str] | str]] = {
        "default": (*_ATTENTION, "gate_proj", "up_proj", "down_proj"),
        "attention": _ATTENTION,
        "mlp": ("gate_proj", "up_proj", "down_proj"),
    }
    wrap_units: ClassVar[tuple[str, ...]] = ("Qwen3DecoderLayer",)

    @classmethod
    def layer_parts(cls, published: Mapping[str, Any], layer: int) -> LayerParts:
        """See the base class."""
        return dense_layer()

    @classmethod
    def build_text(cls, section: ModelSection, facts: ModelFacts) -> TextCodec:
        """Chat answers end with ``<|im_end|>``; see :mod:`dare_sdar.text` for think parts."""
        tokenizer = read_tokenizer(Path(section.tokenizer or section.path or ""), Qwen2Tokenizer)
        return SdarCodec(tokenizer, facts, thinking=cast(SdarSection, section).thinking)


class SdarMoeAdapter(SdarAdapter):
    """The mixture of experts. The group `experts` gives each one a pair of matrices of its own; routers have none."""

    library: ClassVar[tuple[Callable[..., Any], Callable[..., nn.Module]]] = (Qwen3MoeConfig, Qwen3MoeForCausalLM)
    config_keys: ClassVar[tuple[str, ...]] = (
        *SdarAdapter.config_keys,
        *EXPERTS,
        "decoder_sparse_step",
        "mlp_only_layers",
    )
    identity: ClassVar[tuple[str, str]] = ("SDARMoeForCausalLM", "sdar_moe")
    lora_targets: ClassVar[dict[str, Sequence[str] | str]] = {
        "default": _ATTENTION,
        "attention": _ATTENTION,
        "experts": ("experts.gate_up_proj", "experts.down_proj"),
    }
    wrap_units: ClassVar[tuple[str, ...]] = ("Qwen3MoeDecoderLayer",)

    @classmethod
    def layer_parts(cls, published: Mapping[str, Any], layer: int) -> LayerParts:
        """See the base class."""
        return mixed_layer(published, layer)
