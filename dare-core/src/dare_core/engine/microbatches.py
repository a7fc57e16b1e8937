"""Micro-batches by token budget."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dare_core.types import Views


def view_tokens(views: Views) -> Tensor:
    """[N] int64 tokens a model computes per view: its valid positions, twice in block layouts, where the clean copy of
    the row is computed beside the noisy one."""
    copies = 2 if views.layout.kind == "block" else 1
    return views.valid.sum(dim=1) * copies


def by_token_budget(tokens: Tensor, budget: int) -> list[Tensor]:
    """Indices [M] of items packed into micro-batches of at most ``budget`` tokens; a longer item goes alone.

    Items are taken from the longest to the shortest (ties in their own order), so that the first micro-batch is the
    heaviest and lengths within one are alike.

    Args:
        tokens: [N] int64 tokens per item.
        budget: tokens per micro-batch.
    """
    order = torch.argsort(tokens.cpu(), descending=True, stable=True)
    return [order[start:end].to(tokens.device) for start, end in _runs(tokens.cpu()[order].tolist(), budget)]


def _runs(lengths: Iterable[int], budget: int) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    start = held = end = 0
    for length in lengths:
        if end > start and held + length > budget:
            runs.append((start, end))
            start, held = end, 0
        held += length
        end += 1
    return [*runs, (start, end)] if end > start else runs
