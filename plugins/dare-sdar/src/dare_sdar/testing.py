"""Tiny SDAR folders in the published layout, with the published special tokens moved to small ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dare_core.testing.checkpoints import save_fresh
from dare_core.testing.tokenizers import write_tokenizer_pieces
from dare_sdar.adapter import SdarAdapter, SdarMoeAdapter
from dare_sdar.config import SdarMoeSection, SdarSection
from dare_sdar.text import CHAT_TEMPLATE

#: bytes come first
SPECIAL_IDS = {
    "<|endoftext|>": 256,
    "<|im_start|>": 257,
    "<|im_end|>": 258,
    "<think>": 259,
    "</think>": 260,
    "<|MASK|>": 261,
}
#: published with special: false, so that they appear in decoded text
_PLAIN = ("<think>", "</think>")


def tiny_config(**more: Any) -> dict[str, Any]:
    """A published-style config.json of a tiny dense model; ``more`` sets further published keys.

    ``eot_token_id`` is no published key: it tells where the end-of-turn token was moved to.
    """
    return {
        "architectures": ["SDARForCausalLM"],
        "model_type": "sdar",
        "attention_bias": False,
        "block_size": 4,
        "bos_token_id": 256,
        "eos_token_id": 256,
        "eot_token_id": 258,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "mask_token_id": 261,
        "max_position_embeddings": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": 264,
        **more,
    }


def tiny_moe_config(**more: Any) -> dict[str, Any]:
    """Likewise of a tiny mixture of experts; as in the release, there is no ``block_size``."""
    config = tiny_config(
        architectures=["SDARMoeForCausalLM"],
        model_type="sdar_moe",
        decoder_sparse_step=1,
        mlp_only_layers=[],
        moe_intermediate_size=24,
        norm_topk_prob=True,
        num_experts=4,
        num_experts_per_tok=2,
    )
    del config["block_size"]
    return config | more


def write_sdar_tokenizer(folder: Path) -> None:
    """Tokenizer files for the tiny models: bytes, special tokens and the family's chat template."""
    settings = {
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "eos_token": "<|endoftext|>",
        "mask_token": "<|MASK|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
    }
    write_tokenizer_pieces(folder, SPECIAL_IDS, settings, plain=_PLAIN)


def write_sdar_checkpoint(
    folder: Path, *, seed: int = 0, shards: int = 1, dtype: torch.dtype = torch.float32, **keys: Any
) -> Path:
    """Write a random dense checkpoint with its tokenizer.

    Args:
        folder: made if it is missing.
        seed: of the weights.
        shards: weight files, about.
        dtype: of the stored weights.
        keys: for :func:`tiny_config`.

    Returns:
        ``folder``.
    """
    write_sdar_tokenizer(folder)
    section = SdarSection(config=tiny_config(**keys), init="random", tokenizer=str(folder))
    return save_fresh(SdarAdapter, section, folder, seed=seed, shards=shards, dtype=dtype)


def write_sdar_moe_checkpoint(
    folder: Path, *, seed: int = 0, shards: int = 1, dtype: torch.dtype = torch.float32, **keys: Any
) -> Path:
    """Likewise a mixture of experts, from :func:`tiny_moe_config`."""
    write_sdar_tokenizer(folder)
    section = SdarMoeSection(config=tiny_moe_config(**keys), init="random", tokenizer=str(folder))
    return save_fresh(SdarMoeAdapter, section, folder, seed=seed, shards=shards, dtype=dtype)
