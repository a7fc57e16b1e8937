"""Tiny Dream folders in the published layout, with the published special tokens moved to small ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dare_core.testing.checkpoints import save_fresh
from dare_core.testing.tokenizers import write_tokenizer_pieces
from dare_dream.adapter import DreamAdapter
from dare_dream.config import DreamSection
from dare_dream.template import CHAT_TEMPLATE

#: bytes come first
SPECIAL_IDS = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258, "<|beginoftext|>": 259, "<|mask|>": 260}


def tiny_config(**more: Any) -> dict[str, Any]:
    """A published-style config.json of a tiny model; ``more`` sets further published keys.

    ``eot_token_id`` is no published key: it tells where the end-of-turn token was moved to.
    """
    return {
        "architectures": ["DreamModel"],
        "model_type": "Dream",
        "bos_token_id": 256,
        "eos_token_id": 256,
        "eot_token_id": 258,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "mask_token_id": 260,
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


def write_dream_tokenizer(folder: Path) -> None:
    """Tokenizer files for :func:`tiny_config`: bytes, special tokens and the family's chat template."""
    settings = {
        "bos_token": "<|beginoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "DreamTokenizer",
    }
    write_tokenizer_pieces(folder, SPECIAL_IDS, settings)


def write_dream_checkpoint(
    folder: Path, *, seed: int = 0, shards: int = 1, dtype: torch.dtype = torch.float32, **keys: Any
) -> Path:
    """Write a random checkpoint with its tokenizer.

    Args:
        folder: made if it is missing.
        seed: of the weights.
        shards: weight files, about.
        dtype: of the stored weights.
        keys: for :func:`tiny_config`.

    Returns:
        ``folder``.
    """
    write_dream_tokenizer(folder)
    section = DreamSection(config=tiny_config(**keys), init="random", tokenizer=str(folder))
    return save_fresh(DreamAdapter, section, folder, seed=seed, shards=shards, dtype=dtype)
