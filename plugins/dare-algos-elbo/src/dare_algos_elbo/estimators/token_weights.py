"""Weights and ties of single tokens in Dream's fine-tuning (Ye et al. 2025, arXiv:2508.15487)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dare_core.types import Rows


def neighbour_weights(hidden: Tensor, valid: Tensor, decay: float) -> Tensor:
    """CART: how much visible context surrounds each hidden token.

    w_i = 1/2 sum over visible j of p (1 - p)^(|i - j| - 1), p = ``decay``; at most 1, and large next to visible tokens.

    Args:
        hidden: [N,L] bool.
        valid: [N,L] bool; padding outside rows is not context.
        decay: p of the geometric kernel.

    Returns:
        [N,L] float64; 0 where not hidden.
    """
    place = torch.arange(hidden.shape[1], device=hidden.device)
    distance = (place[:, None] - place).abs()
    kernel = 0.5 * decay * (1 - decay) ** (distance - 1).clamp(min=0).to(torch.float64) * (distance > 0)
    return ((valid & ~hidden).to(torch.float64) @ kernel) * hidden


def focal_logp(logp: Tensor, power: float) -> Tensor:
    """(1 - p)^``power`` log p of log-probabilities of any shape: what is known well counts less.

    Lin et al., "Focal loss for dense object detection", ICCV 2017, eq. 4.
    """
    # A certain token has no gradient; without the bound it would be 0 times infinity for powers below 1.
    return (-torch.expm1(logp)).clamp(min=1e-12) ** power * logp


def closing_run(rows: Rows, eos_ids: Sequence[int]) -> Tensor:
    """[B,L] int64: for the end tokens that close a response, the column of the first of them; else the own column."""
    ends = torch.isin(rows.tokens, torch.tensor(list(eos_ids), dtype=torch.int64, device=rows.tokens.device))
    column = torch.arange(rows.tokens.shape[1], device=rows.tokens.device).expand_as(rows.tokens)
    other = column.masked_fill(~rows.response | ends, -1).amax(dim=1, keepdim=True)
    run = rows.response & ends & (column > other)
    first = column.masked_fill(~run, rows.tokens.shape[1]).amin(dim=1, keepdim=True)
    return torch.where(run, first, column)
