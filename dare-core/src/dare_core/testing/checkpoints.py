"""Tiny published folders: a family's fresh model, saved."""

from __future__ import annotations

from pathlib import Path

import torch

from dare_core.backbones.adapter import TransformerAdapter
from dare_core.spec.sections import ModelSection


def save_fresh(
    adapter_class: type[TransformerAdapter],
    section: ModelSection,
    folder: Path,
    *,
    seed: int = 0,
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Start a model afresh and save it in its published layout.

    Args:
        adapter_class: the family's.
        section: with ``config`` and ``init: random``.
        folder: made if it is missing.
        seed: of the weights.
        shards: weight files, about.
        dtype: of the stored weights.

    Returns:
        ``folder``.
    """
    adapter = adapter_class.load(section, device=torch.device("cpu"), dtype=dtype, seed=seed)
    if shards > 1:
        total = sum(tensor.numel() * tensor.element_size() for _, tensor in adapter.published())
        adapter.max_shard_bytes = -(-total // shards)
    adapter.save(folder)
    return folder
