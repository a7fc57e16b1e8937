"""Tiny LLaDA2 folders in the published layout, with the published special tokens moved to small ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dare_core.testing.checkpoints import save_fresh
from dare_core.testing.tokenizers import write_tokenizer
from dare_llada2.adapter import Llada2Adapter
from dare_llada2.config import Llada2Section
from dare_llada2.template import CHAT_TEMPLATE

#: bytes come first
SPECIAL_IDS = {
    "<|startoftext|>": 256,
    "<|endoftext|>": 257,
    "<|mask|>": 258,
    "<role>": 259,
    "</role>": 260,
    "<|role_end|>": 261,
}


def tiny_config(**more: Any) -> dict[str, Any]:
    """A published-style config.json of a tiny model with one dense layer; ``more`` sets further published keys.

    ``block_size``, ``mask_token_id``, ``eos_token_id`` and ``eot_token_id`` are no published keys: they tell what
    the family's defaults are replaced by.
    """
    return {
        "architectures": ["LLaDA2MoeModelLM"],
        "model_type": "llada2_moe",
        "block_size": 4,
        "eos_token_id": 257,
        "eot_token_id": 261,
        "first_k_dense_replace": 1,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "mask_token_id": 258,
        "max_position_embeddings": 512,
        "moe_intermediate_size": 16,
        "n_group": 4,
        "num_attention_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_shared_experts": 1,
        "pad_token_id": 257,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-6,
        "rope_theta": 600000,
        "routed_scaling_factor": 2.5,
        "tie_word_embeddings": False,
        "topk_group": 2,
        "torch_dtype": "float32",
        "use_bias": False,
        "use_qkv_bias": False,
        "vocab_size": 264,
        **more,
    }


def write_llada2_tokenizer(folder: Path) -> None:
    """Tokenizer files for the tiny models: bytes, special tokens and the family's chat template."""
    roles = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    write_tokenizer(folder, SPECIAL_IDS, 264, chat_template=CHAT_TEMPLATE, roles=roles)


def write_llada2_checkpoint(
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
    write_llada2_tokenizer(folder)
    section = Llada2Section(config=tiny_config(**keys), init="random", tokenizer=str(folder))
    return save_fresh(Llada2Adapter, section, folder, seed=seed, shards=shards, dtype=dtype)
