"""Tiny LLaDA folders in the published layout, with the published special tokens moved to small ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dare_core.testing.tokenizers import write_tokenizer
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.template import CHAT_TEMPLATE

#: in the order of their ids
SPECIAL_TOKENS = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)


def special_ids(vocab_size: int) -> dict[str, int]:
    """The special tokens as the last ids of a vocabulary."""
    first = vocab_size - len(SPECIAL_TOKENS)
    return {text: first + offset for offset, text in enumerate(SPECIAL_TOKENS)}


def tiny_config(
    *,
    vocab_size: int = 262,
    d_model: int = 32,
    n_layers: int = 2,
    n_heads: int = 4,
    n_kv_heads: int | None = None,
    mlp_hidden_size: int = 48,
    max_sequence_length: int = 512,
    **more: Any,
) -> dict[str, Any]:
    """A published-style config.json of a tiny model; ``more`` sets further published keys.

    ``eot_token_id`` is no published key: it tells where the end-of-turn token was moved to.
    """
    ids = special_ids(vocab_size)
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "activation_type": "silu",
        "block_type": "llama",
        "d_model": d_model,
        "embedding_size": vocab_size,
        "eos_token_id": ids["<|endoftext|>"],
        "eot_token_id": ids["<|eot_id|>"],
        "init_std": 0.02,
        "layer_norm_type": "rms",
        "mask_token_id": ids["<|mdm_mask|>"],
        "max_sequence_length": max_sequence_length,
        "mlp_hidden_size": mlp_hidden_size,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads or n_heads,
        "n_layers": n_layers,
        "pad_token_id": ids["<|endoftext|>"],
        "rms_norm_eps": 1e-5,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": 500000.0,
        "torch_dtype": "float32",
        "vocab_size": vocab_size,
        "weight_tying": False,
        **more,
    }


def write_llada_tokenizer(folder: Path, *, vocab_size: int = 262) -> None:
    """Tokenizer files for :func:`tiny_config`: bytes, special tokens and the family's chat template."""
    roles = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    write_tokenizer(folder, special_ids(vocab_size), vocab_size, chat_template=CHAT_TEMPLATE, roles=roles)


def write_llada_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
    **sizes: Any,
) -> Path:
    """Write a random checkpoint with its tokenizer.

    Args:
        folder: made if it is missing.
        seed: of the weights.
        shards: weight files, about.
        dtype: of the stored weights.
        sizes: for :func:`tiny_config`.

    Returns:
        ``folder``.
    """
    config = tiny_config(**sizes)
    write_llada_tokenizer(folder, vocab_size=config["vocab_size"])
    section = LladaSection(config=config, init="random", tokenizer=str(folder))
    adapter = LladaAdapter.load(section, device=torch.device("cpu"), dtype=dtype, seed=seed)
    if shards > 1:
        total = sum(tensor.numel() * tensor.element_size() for _, tensor in adapter.published())
        adapter.max_shard_bytes = -(-total // shards)
    adapter.save(folder)
    return folder
