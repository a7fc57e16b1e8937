"""Tiny LLaDA-MoE folders in the published layout, with the published special tokens moved to small ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dare_core.testing.checkpoints import save_fresh
from dare_core.testing.tokenizers import write_tokenizer
from dare_llada.moe.adapter import LladaMoeAdapter
from dare_llada.moe.config import LladaMoeSection

#: bytes come first
SPECIAL_IDS = {"<|startoftext|>": 256, "<|endoftext|>": 257, "<|mask|>": 258, "<|role|>": 259}

#: no published one is known; the released tokenizer brings its own
CHAT_TEMPLATE = (
    "{% for message in messages %}<|role|>{{ message['role'] + '\n' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|role|>{{ 'assistant\n' }}{% endif %}"
)


def tiny_config(**more: Any) -> dict[str, Any]:
    """A published-style config.json of a tiny model; ``more`` sets further published keys."""
    return {
        "architectures": ["LLaDAMoEModelLM"],
        "model_type": "lladamoe",
        "attention_bias": False,
        "clip_qkv": None,
        "dense_intermediate_size": 48,
        "eos_token_id": 257,
        "expert_intermediate_size": 16,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "mask_token_id": 258,
        "max_position_embeddings": 512,
        "moe_layer_freq": [1, 1],
        "moe_router_enable_expert_bias": False,
        "num_attention_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "pad_token_id": 257,
        "partial_rotary_factor": 1,
        "qk_layernorm": True,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "shared_expert_intermediate_size": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 264,
        **more,
    }


def write_llada_moe_tokenizer(folder: Path) -> None:
    """Tokenizer files for the tiny models: bytes, special tokens and a chat template."""
    roles = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    write_tokenizer(folder, SPECIAL_IDS, 264, chat_template=CHAT_TEMPLATE, roles=roles)


def write_llada_moe_checkpoint(
    folder: Path, *, seed: int = 0, shards: int = 1, dtype: torch.dtype = torch.float32, **keys: Any
) -> Path:
    """Write a random checkpoint with its tokenizer.

    Args:
        folder: made if it is missing.
        seed: of the weights.
        shards: weight files, about.
        dtype: of the stored weights; routing biases are zeros in float32.
        keys: for :func:`tiny_config`.

    Returns:
        ``folder``.
    """
    write_llada_moe_tokenizer(folder)
    section = LladaMoeSection(config=tiny_config(**keys), init="random", tokenizer=str(folder))
    return save_fresh(LladaMoeAdapter, section, folder, seed=seed, shards=shards, dtype=dtype)
