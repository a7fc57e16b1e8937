"""Adapters of families that have no package yet, as far as tests of the shared base need them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dare_core.backbones.adapter import TransformerAdapter
from dare_core.backbones.attention import ATTENTION
from dare_core.backbones.text import TokenizerCodec, read_tokenizer
from dare_core.backbones.weights import Part
from dare_core.spec.sections import ModelSection
from dare_core.types import AttentionLayout, ModelFacts

GOLDENS = Path(__file__).parents[1] / "goldens" / "data" / "models"


class QwenSection(ModelSection):
    """Facts of the tiny golden checkpoints."""

    def facts(self, published: Mapping[str, Any]) -> ModelFacts:
        block = published.get("block_size")
        return ModelFacts(
            kind=published["model_type"].lower(),
            diffusion="masked" if block is None else "block",
            vocab_size=published["vocab_size"],
            mask_id=published["mask_token_id"],
            eos_ids=(published["eos_token_id"],),
            pad_id=published["pad_token_id"],
            max_positions=published["max_position_embeddings"],
            layout=AttentionLayout() if block is None else AttentionLayout("block", block),
        )


class _Qwen(TransformerAdapter):
    lora_targets: ClassVar = {"default": ("q_proj", "v_proj")}
    wrap_units = ()

    @classmethod
    def settings(cls, published: Mapping[str, Any]) -> dict[str, Any]:
        names = (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "rms_norm_eps",
            "vocab_size",
            "head_dim",
        )
        rope = {"rope_type": "default", "rope_theta": float(published["rope_theta"])}
        return {n: published[n] for n in names if n in published} | {
            "rope_parameters": rope,
            "attn_implementation": ATTENTION,
        }

    @classmethod
    def restore_buffers(cls, module, device):
        rotary = module.model.rotary_emb
        module.model.rotary_emb = type(rotary)(rotary.config).to(device)

    @classmethod
    def weight_layout(cls, published):
        with torch.device("meta"):
            names = [name for name, _ in cls.build_module(published).named_parameters()]
        return {name: [Part(name)] for name in names}

    @classmethod
    def fresh_std(cls, published, parameter):
        return None if "norm" in parameter else 0.02

    @classmethod
    def build_text(cls, section, facts):
        return TokenizerCodec(read_tokenizer(Path(section.path)), facts, end_id=facts.eos_ids[0])


class DreamLike(_Qwen):
    """Qwen2 with logits that predict the next token."""

    shift = 1

    @classmethod
    def build_module(cls, published):
        return Qwen2ForCausalLM(Qwen2Config(**cls.settings(published)))


class SdarLike(_Qwen):
    """Qwen3 with block layouts."""

    @classmethod
    def build_module(cls, published):
        return Qwen3ForCausalLM(Qwen3Config(**cls.settings(published)))


def load_golden(adapter: type[_Qwen], family: str) -> _Qwen:
    section = QwenSection(path=str(GOLDENS / family / "checkpoint"))
    return adapter.load(section, device=torch.device("cpu"), dtype=torch.float32)
