"""Dream on transformers' Qwen2 classes, made bidirectional.

Ye et al., "Dream 7B: Diffusion Large Language Models", arXiv:2508.15487. The checkpoint keeps the alignment of
the autoregressive model it was made from: the state at position i predicts the token at i + 1, with the
mask token at i + 1 in sight. Here logits stand at the token they predict (``shift = 1``); a row's first token
is predicted by nothing and reads its own state as filler, so it is never masked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from dare_core.backbones.stock import MLP, LayerParts, StockAdapter, same_names
from dare_core.backbones.text import TokenizerCodec, read_tokenizer
from dare_core.interfaces import TextCodec
from dare_core.types import ModelFacts
from dare_dream.config import REQUIRED
from dare_dream.template import CHAT_TEMPLATE

if TYPE_CHECKING:
    from dare_core.spec.sections import ModelSection

#: members of a layer beside its MLP
ATTENTION = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"self_attn.{name}_proj.{part}" for name in "qkv" for part in ("weight", "bias")),
    "self_attn.o_proj.weight",
)


class DreamAdapter(StockAdapter):
    """See :class:`dare_core.backbones.stock.StockAdapter`."""

    shift: ClassVar[int] = 1
    library: ClassVar[tuple[Callable[..., Any], Callable[..., nn.Module]]] = (Qwen2Config, Qwen2ForCausalLM)
    config_keys: ClassVar[tuple[str, ...]] = (*REQUIRED, "rms_norm_eps", "max_position_embeddings")
    defaults: ClassVar[Mapping[str, Any]] = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0}
    identity: ClassVar[tuple[str, str]] = ("DreamModel", "Dream")
    lora_targets: ClassVar[dict[str, Sequence[str] | str]] = {
        "default": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
        "mlp": ("gate_proj", "up_proj", "down_proj"),
    }
    wrap_units: ClassVar[tuple[str, ...]] = ("Qwen2DecoderLayer",)

    @classmethod
    def layer_parts(cls, published: Mapping[str, Any], layer: int) -> LayerParts:
        """See the base class."""
        return same_names((*ATTENTION, *MLP))

    @classmethod
    def build_text(cls, section: ModelSection, facts: ModelFacts) -> TextCodec:
        """Chat answers end with ``<|im_end|>``; models without it end with the first end token."""
        tokenizer = read_tokenizer(Path(section.tokenizer or section.path or ""), Qwen2Tokenizer)
        end_id = facts.extra_ids.get("eot", facts.eos_ids[0])
        return TokenizerCodec(tokenizer, facts, end_id=end_id, template=CHAT_TEMPLATE)
