"""From scores of views to one number per token of a row."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_core.types import Rows, Scores, Views


def weighted_token_sum(views: Views, scores: Scores, rows: Rows) -> Tensor:
    """[B,L]: sum over a row's views of weight x log-probability at scored positions, 0 elsewhere."""
    terms = torch.where(views.scored, views.weight * scores.logp, 0.0)
    return torch.zeros(rows.tokens.shape, dtype=terms.dtype, device=terms.device).index_add(0, views.row, terms)
