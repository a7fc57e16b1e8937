"""From a loss per entry to one number. Every divisor is stated and taken over the whole batch.

Entries are [N,L]; ``mask`` says which count; ``row`` [N] says which of ``rows`` sequences a line belongs to
(default: line n is sequence n), so estimates per token [B,L] and per view and token [N,L] reduce alike.
What is masked out may hold any number, NaN included. Without a counted entry the result is 0, connected to
the graph with zero gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _kept(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0)


def row_sums(values: Tensor, mask: Tensor, row: Tensor | None = None, rows: int | None = None) -> Tensor:
    """[B] sums of the counted entries of each sequence."""
    lines = _kept(values, mask).sum(dim=1)
    if row is None:
        return lines
    count = int(row.max()) + 1 if rows is None else rows
    return torch.zeros(count, dtype=lines.dtype, device=lines.device).index_add(0, row, lines)


def row_counts(mask: Tensor, row: Tensor | None = None, rows: int | None = None) -> Tensor:
    """[B] float counted entries of each sequence."""
    return row_sums(mask.to(torch.float64), mask, row, rows)


def token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Sum over all counted entries / their number: long sequences weigh more."""
    return _kept(values, mask).sum() / mask.sum().clamp(min=1)


def per_sequence(sums: Tensor, divisor: Tensor | float, counted: Tensor | None = None) -> Tensor:
    """Mean over counted sequences of ``sums / divisor``.

    Args:
        sums: [B] sums of each sequence.
        divisor: [B] or one number, the normaliser of each sequence.
        counted: [B] bool sequences in the mean; default all.
    """
    counted = torch.ones_like(sums, dtype=torch.bool) if counted is None else counted
    safe = torch.where(counted, torch.as_tensor(divisor, dtype=sums.dtype, device=sums.device), 1.0)
    return torch.where(counted, sums / safe, 0.0).sum() / counted.sum().clamp(min=1)


def sequence_mean_token_sum(
    values: Tensor, mask: Tensor, row: Tensor | None = None, counted: Tensor | None = None, rows: int | None = None
) -> Tensor:
    """Mean over sequences of the sum over their entries; sequences not ``counted`` [B] leave the divisor too."""
    return per_sequence(row_sums(values, mask, row, rows), 1.0, counted)


def sequence_mean_token_mean(
    values: Tensor, mask: Tensor, row: Tensor | None = None, rows: int | None = None
) -> Tensor:
    """Mean over sequences that have a counted entry of the mean over their entries: all sequences weigh the same."""
    counts = row_counts(mask, row, rows)
    return per_sequence(row_sums(values, mask, row, rows), counts, counts > 0)


def fixed_length(values: Tensor, mask: Tensor, length: float, sequences: Tensor | float = 1.0) -> Tensor:
    """Sum over all counted entries / (length x sequences): a constant weight per token (Liu et al. 2025, Dr. GRPO)."""
    return _kept(values, mask).sum() / (length * torch.as_tensor(sequences, device=values.device).clamp(min=1))


def step_mean(values: Tensor, mask: Tensor, step: Tensor, eps: float = 0.0) -> Tensor:
    """Token mean over the whole batch within each denoising step, then the mean over steps.

    Every step weighs the same whatever its number of tokens; steps without a counted entry are left out.

    Args:
        values: [N,L] losses.
        mask: [N,L] bool entries that count.
        step: [N] int64 step of each line, or [N,L] of each entry.
        eps: added to each step's number of entries.
    """
    of_entry = (step if step.dim() == 2 else step[:, None].expand_as(mask))[mask]
    steps, index = torch.unique(of_entry, return_inverse=True)
    sums = torch.zeros(len(steps), dtype=values.dtype, device=values.device).index_add(0, index, values[mask])
    return per_sequence(sums, torch.bincount(index, minlength=len(steps)) + eps)


def transition_weights(mask: Tensor, transition: Tensor, row: Tensor, rows: int) -> Tensor:
    """[N,L] float64 weights of a token mean within each transition, then a mean over a row's transitions.

    They sum to 1 for every row with a counted entry, however its transitions are split over lines; 0 where not counted.

    Args:
        mask: [N,L] bool entries that count.
        transition: [N,L] int64 what was committed together; ids are not shared between rows.
        row: [N] int64 row of each line.
        rows: B.
    """
    ids, index, tokens = torch.unique(transition[mask], return_inverse=True, return_counts=True)
    owner = torch.zeros_like(ids).index_copy(0, index, row[:, None].expand_as(mask)[mask])
    share = 1.0 / (tokens * torch.bincount(owner, minlength=rows)[owner]).to(torch.float64)
    return torch.zeros(mask.shape, dtype=torch.float64, device=mask.device).masked_scatter(mask, share[index])


def masked_mean(values: Tensor, mask: Tensor) -> tuple[float, float]:
    """(sum, weight) over counted entries, for a :class:`dare_core.types.Metric`."""
    return float(_kept(values.detach(), mask).sum()), float(mask.sum())
