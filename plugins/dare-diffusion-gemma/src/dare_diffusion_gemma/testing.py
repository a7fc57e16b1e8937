"""Tiny DiffusionGemma folders in the published layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dare_core.testing.checkpoints import save_fresh
from dare_core.testing.tokenizers import write_tokenizer
from dare_diffusion_gemma.adapter import DiffusionGemmaAdapter
from dare_diffusion_gemma.config import DiffusionGemmaSection

VOCABULARY = 264
#: padding, end and start as published; the turn markers moved to small ids
SPECIAL_IDS = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<|turn>": 3, "<turn|>": 4}
#: of the tiny folders; the published one comes with the release
CHAT_TEMPLATE = (
    "{{ '<bos>' }}{% for message in messages %}"
    "{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{{ message['content'] | trim }}{{ '<turn|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}"
)


def tiny_config(**more: Any) -> dict[str, Any]:
    """A published-style config.json of a tiny model; ``more`` sets keys of its ``text_config``.

    ``eot_token_id`` is no published key: it tells where the end-of-turn token was moved to.
    """
    text = {
        "eos_token_id": 1,
        "head_dim": 8,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 512,
        "model_type": "diffusion_gemma_text",
        "moe_intermediate_size": 16,
        "num_attention_heads": 4,
        "num_experts": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "per_layer_config": {"1": {"head_dim": 16, "num_key_value_heads": 1}},
        "sliding_window": 6,
        "top_k_experts": 2,
        "vocab_size": VOCABULARY,
        **more,
    }
    vision = {
        "head_dim": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
        "model_type": "gemma4_vision",
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "patch_size": 4,
        "position_embedding_size": 16,
    }
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "canvas_length": 4,
        "eot_token_id": 4,
        "model_type": "diffusion_gemma",
        "text_config": text,
        "tie_word_embeddings": True,
        "vision_config": vision,
    }


def write_diffusion_gemma_checkpoint(
    folder: Path, *, seed: int = 0, shards: int = 1, dtype: torch.dtype = torch.float32, **keys: Any
) -> Path:
    """Write a random checkpoint with its tokenizer; its vision part is zero.

    Args:
        folder: made if it is missing.
        seed: of the weights.
        shards: weight files, about.
        dtype: of the stored weights.
        keys: for :func:`tiny_config`.

    Returns:
        ``folder``.
    """
    roles = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    write_tokenizer(folder, SPECIAL_IDS, VOCABULARY, chat_template=CHAT_TEMPLATE, roles=roles)
    section = DiffusionGemmaSection(config=tiny_config(**keys), init="random", tokenizer=str(folder))
    return save_fresh(DiffusionGemmaAdapter, section, folder, seed=seed, shards=shards, dtype=dtype)
