"""Which positions change at a step: functions of one signature, ``select(confidence, masked, quota)``.

Two more functions of the same kind complete a step: :func:`edited`, for rules that replace committed tokens, and
:func:`dare_core.diffusion.schedules.commit_quota`, which says how many tokens a step should commit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from dare_core.diffusion.confidence import Ties
from dare_core.diffusion.rules import Rule, Selector

#: (confidence [B,L] float64, masked [B,L] bool, quota [B]) -> [B,L] bool positions to commit, inside ``masked``.
#: The quota may be fractional: who counts takes its whole part. Every selector but ``independent`` picks at least one
#: position of a row that has a masked one and a quota of at least 1.
Select = Callable[[Tensor, Tensor, Tensor], Tensor]


def select(rule: Rule, ties: Ties = "exact") -> Select:
    """The selecting function of a rule of the table.

    Args:
        rule: from :func:`dare_core.diffusion.rules.find_rule`.
        ties: in which form confidences come, see :mod:`dare_core.diffusion.confidence`.
    """
    if rule.selector == "factor":
        return lambda confidence, masked, quota: by_factor(confidence, masked, rule, ties)
    if rule.selector == "runs":
        low, high = _comparable(rule.low_threshold, ties), _comparable(rule.threshold, ties)
        return lambda confidence, masked, quota: best_of_runs(confidence, masked, low, high)
    bound = rule.bound if rule.selector == "entropy-bounded" else _comparable(rule.threshold, ties)
    return lambda confidence, masked, quota: _SELECTORS[rule.selector](confidence, masked, quota, bound)


def _comparable(probability: float, ties: Ties) -> float:
    """A probability in the form in which token confidences are compared."""
    if ties == "published":
        return probability
    if probability <= 0:
        return -math.inf
    return math.log(probability) - math.log1p(-probability) if probability < 1 else math.inf


def most_confident(confidence: Tensor, masked: Tensor, quota: Tensor) -> Tensor:
    """The ``quota`` [B] masked positions with the largest confidence; equal ones: the lower position first."""
    return (_rank(confidence, masked) < quota.floor()[:, None]) & masked


def above_threshold(confidence: Tensor, masked: Tensor, quota: Tensor, bound: float) -> Tensor:
    """Masked positions with confidence >= ``bound``, and always the best one. The quota is not used."""
    return (masked & (confidence >= bound)) | _best(confidence, masked)


def threshold_or_quota(confidence: Tensor, masked: Tensor, quota: Tensor, bound: float) -> Tensor:
    """Masked positions with confidence > ``bound`` if they are at least ``quota`` many, else the quota's best."""
    sure = masked & (confidence > bound)
    enough = sure.sum(dim=1, keepdim=True) >= quota.floor()[:, None]
    return sure.where(enough, most_confident(confidence, masked, quota))


def threshold_within_quota(confidence: Tensor, masked: Tensor, quota: Tensor, bound: float) -> Tensor:
    """Of the quota's best positions, those with confidence >= ``bound``, and always the best one."""
    wanted = most_confident(confidence, masked, quota)
    return (wanted & (confidence >= bound)) | _best(confidence, wanted)


def by_factor(confidence: Tensor, masked: Tensor, rule: Rule, ties: Ties) -> Tensor:
    """The best masked position, and the n-th best while its probability is at least 1 - f / (n + 1).

    Probabilities fall and bounds rise with n, so all tests that pass come before all that fail. The published walk
    leaves out the test at the last rank, so that the last masked position commits if all before it do.
    """
    rank, count = _rank(confidence, masked), masked.sum(dim=1, keepdim=True)
    bounds = [_comparable(1 - rule.factor / (n + 1), ties) for n in range(1, confidence.shape[1] + 1)]
    passed = confidence >= torch.tensor(bounds, dtype=confidence.dtype, device=confidence.device)[rank]
    passed = masked & (passed | (rank == 0))
    if rule.last_rank == "ignored":
        passed |= masked & (rank == count - 1) & ((passed & (rank < count - 1)).sum(dim=1, keepdim=True) == count - 1)
    return passed


def best_of_runs(confidence: Tensor, masked: Tensor, low: float, high: float) -> Tensor:
    """The best position of every run of masked positions with confidence > ``low``, all with confidence > ``high``,
    and always the best one."""
    rank = _rank(confidence, masked)
    begins = masked & ~torch.nn.functional.pad(masked, (1, 0))[:, :-1]
    run = begins.cumsum(dim=1) * masked
    best = torch.full_like(rank, rank.shape[1]).scatter_reduce(1, run, rank, "amin")
    leads = masked & (rank == best.gather(1, run)) & (confidence > low)
    return leads | (masked & (confidence > high)) | (masked & (rank == 0))


def entropy_bounded(confidence: Tensor, masked: Tensor, quota: Tensor, bound: float) -> Tensor:
    """Masked positions by ascending entropy while their sum stays below ``bound``, at least one; ``confidence`` is
    the negative entropy (nats). The quota is not used."""
    entropy = -confidence.where(masked, -torch.inf)
    order = entropy.argsort(dim=1, stable=True)
    within = entropy.gather(1, order).cumsum(dim=1) < bound
    return (torch.zeros_like(masked).scatter(1, order, within) & masked) | _best(confidence, masked)


def independent(confidence: Tensor, masked: Tensor, quota: Tensor) -> Tensor:
    """Every masked position for itself with probability quota / masked; ``confidence`` is uniform in (0, 1)."""
    share = quota / masked.sum(dim=1).clamp(min=1)
    return masked & (confidence < share[:, None])


def edited(rule: Rule, ties: Ties, confidence: Tensor, replaceable: Tensor) -> Tensor:
    """[B,L] bool committed tokens to replace.

    Args:
        rule: with an ``edit_threshold``.
        ties: form of the confidences.
        confidence: [B,L] float64 of the proposed token.
        replaceable: [B,L] bool committed positions of the block whose proposal is another token.
    """
    if rule.edit_threshold is None:
        return torch.zeros_like(replaceable)
    return replaceable & (confidence > _comparable(rule.edit_threshold, ties))


_SELECTORS: Mapping[Selector, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = MappingProxyType(
    {
        "most-confident": lambda confidence, masked, quota, _: most_confident(confidence, masked, quota),
        "threshold": above_threshold,
        "threshold-or-quota": threshold_or_quota,
        "threshold-within-quota": threshold_within_quota,
        "entropy-bounded": entropy_bounded,
        "independent": lambda confidence, masked, quota, _: independent(confidence, masked, quota),
    }
)


def _rank(confidence: Tensor, masked: Tensor) -> Tensor:
    """[B,L] int64 place of each position when sorted by confidence, masked ones first."""
    lowest = torch.finfo(confidence.dtype).min
    # Positions that are sure not to be wanted (-inf) still rank before those that are not masked.
    ranked = torch.where(masked, confidence.clamp(min=lowest), -torch.inf)
    return ranked.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def _best(confidence: Tensor, masked: Tensor) -> Tensor:
    return (_rank(confidence, masked) == 0) & masked
