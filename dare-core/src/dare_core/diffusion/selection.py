"""Which masked positions commit at a step: functions of one signature, ``select(confidence, masked, quota)``."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dare_core.diffusion.confidence import Ties
from dare_core.diffusion.rules import Rule

#: (confidence [B,L] float64, masked [B,L] bool, quota [B] int64) -> [B,L] bool positions to commit, inside
#: ``masked``, at least one in every row that has a masked position
Select = Callable[[Tensor, Tensor, Tensor], Tensor]


def select(rule: Rule, ties: Ties = "exact") -> Select:
    """The selecting function of a rule of the table.

    Args:
        rule: from :func:`dare_core.diffusion.rules.find_rule`.
        ties: in which form confidences come, see :mod:`dare_core.diffusion.confidence`.
    """
    if rule.selector == "most-confident":
        return most_confident
    # A threshold on a probability, moved into the form in which confidences are compared.
    bound = rule.threshold
    if ties == "exact":
        bound = math.log(bound) - math.log1p(-bound) if bound < 1 else math.inf
    return lambda confidence, masked, quota: above_threshold(confidence, masked, quota, bound)


def most_confident(confidence: Tensor, masked: Tensor, quota: Tensor) -> Tensor:
    """The ``quota`` [B] masked positions with the largest confidence; equal ones: the lower position first."""
    lowest = torch.finfo(confidence.dtype).min
    # Positions that are sure not to be wanted (-inf) still rank before those that are not masked.
    ranked = torch.where(masked, confidence.clamp(min=lowest), -torch.inf)
    order = ranked.argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)
    return (rank < quota[:, None]) & masked


def above_threshold(confidence: Tensor, masked: Tensor, quota: Tensor, bound: float) -> Tensor:
    """Masked positions with confidence >= ``bound``, and always the best one. The quota is not used."""
    best = most_confident(confidence, masked, torch.ones_like(quota))
    return (masked & (confidence >= bound)) | best
