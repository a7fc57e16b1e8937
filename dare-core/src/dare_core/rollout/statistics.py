"""What a rollout looks like in numbers: is there anything to learn from it?"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_core.types import Rollout


def unique_share(rollout: Rollout) -> float:
    """Distinct completions over responses, averaged over groups; 1 / G where all of a group's are equal."""
    shares = [distinct / size for distinct, size in _distinct(rollout)]
    return sum(shares) / len(shares) if shares else float("nan")


def collapsed_groups(rollout: Rollout) -> int:
    """Groups of more than one response whose completions are all equal. At temperature > 0 that is a warning sign."""
    return sum(1 for distinct, size in _distinct(rollout) if size > 1 and distinct == 1)


def rollout_statistics(rollout: Rollout) -> dict[str, float]:
    """Metrics of a rollout: ``rollout/unique_share``, ``collapsed_groups``, ``response_length`` (tokens up to the
    first end token, mean), ``limit_share`` (responses without an end token), ``empty_share``, ``forwards`` (mean),
    ``tokens_per_forward`` and, where recorded, ``logp`` (mean per completion token) and ``agreement`` (with the exact
    decoder)."""
    count = max(1, len(rollout))
    length = rollout.completion.sum(dim=1).to(torch.float64)
    decoded = rollout.response if rollout.trace is None else rollout.trace.commit_step >= 0
    statistics = {
        "unique_share": unique_share(rollout),
        "collapsed_groups": float(collapsed_groups(rollout)),
        "response_length": float(length.mean()),
        "limit_share": sum(finish == "length" for finish in rollout.finish) / count,
        "empty_share": sum(not text for text in rollout.text) / count,
        "forwards": float(rollout.forwards.to(torch.float64).mean()),
        "tokens_per_forward": float(decoded.sum() / rollout.forwards.sum().clamp(min=1)),
    }
    if rollout.logp is not None:
        statistics["logp"] = float((rollout.logp * rollout.completion).sum() / length.sum().clamp(min=1))
    if rollout.agreement is not None:
        statistics["agreement"] = rollout.agreement
    return {f"rollout/{name}": value for name, value in statistics.items()}


def _distinct(rollout: Rollout) -> list[tuple[int, int]]:
    """(distinct completions, responses) per group, in order of first appearance."""
    groups: dict[int, list[tuple[int, ...]]] = {}
    for row, group in enumerate(rollout.group.tolist()):
        groups.setdefault(group, []).append(_completion(rollout, row))
    return [(len(set(texts)), len(texts)) for texts in groups.values()]


def _completion(rollout: Rollout, row: int) -> tuple[int, ...]:
    kept: Tensor = rollout.tokens[row][rollout.completion[row]]
    return tuple(kept.tolist())
