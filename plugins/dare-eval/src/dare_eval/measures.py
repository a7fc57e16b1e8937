"""Metrics with 95 % intervals, from stored items alone.

Shares of independent yes-or-no items: Wilson's score interval (Wilson 1927). Means of anything else (scores, pass@k,
means over several samples, means of groups): percentile bootstrap over items, 2,000 resamples with fixed draws, so
that the same items give the same interval. The bootstrap of a macro mean resamples within groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dare_core.diffusion.seeds import uniforms
from dare_core.interfaces import Measure
from dare_core.types import Address
from dare_eval.sampling_metrics import pass_at_k

Z95 = 1.959963984540054
RESAMPLES = 2000
_ROWS_AT_ONCE = 1 << 21

Item = Mapping[str, Any]


def wilson(right: int, count: int) -> tuple[float, float]:
    """95 % score interval of a share."""
    share, spread = right / count, Z95 * Z95 / count
    middle = (share + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def share(hits: Sequence[bool]) -> Measure:
    """A share with Wilson's interval."""
    low, high = wilson(sum(hits), len(hits))
    return Measure(value=sum(hits) / len(hits), count=len(hits), low=low, high=high, method="wilson")


def mean(values: Sequence[float], groups: Sequence[str] | None = None) -> Measure:
    """A mean, or the mean of group means, with a bootstrap interval."""
    parts = _parts(values, groups)
    estimate = sum(float(part.mean()) for part in parts) / len(parts)
    resampled = torch.zeros(RESAMPLES, dtype=torch.float64)
    for number, part in enumerate(parts):
        resampled += _resampled_means(part, number) / len(parts)
    low, high = torch.quantile(resampled, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Measure(value=estimate, count=len(values), low=low, high=high, method="bootstrap")


def count(value: int, of: int) -> Measure:
    """A plain count."""
    return Measure(value=float(value), count=of)


def _parts(values: Sequence[float], groups: Sequence[str] | None) -> list[Tensor]:
    if groups is None:
        return [torch.tensor(values, dtype=torch.float64)]
    by_group: dict[str, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        by_group.setdefault(group, []).append(value)
    return [torch.tensor(part, dtype=torch.float64) for _, part in sorted(by_group.items())]


def _resampled_means(values: Tensor, part: int) -> Tensor:
    """[RESAMPLES] means of samples with replacement."""
    size = len(values)
    step = max(1, _ROWS_AT_ONCE // size)
    address = Address(0, "eval/bootstrap")
    means = []
    for start in range(0, RESAMPLES, step):
        sample = torch.arange(start, min(RESAMPLES, start + step), dtype=torch.int64)
        means.append(values[(uniforms(address, sample, part, size) * size).long()].mean(dim=1))
    return torch.cat(means)


def measures_of_responses(items: Sequence[Item], headline: str) -> dict[str, Measure]:
    """Metrics of generated responses; failures of the judge itself are left out of means and counted as ``errors``.

    ``accuracy`` is the share of right responses (the mean over samples, avg@n, where there are several); ``score`` the
    mean score; ``pass@k`` and ``maj@n`` where there are several samples; ``unparsed_rate``, ``limit_rate``,
    ``macro_accuracy`` where items have groups; ``mean_tokens``; further numbers of the rule by their names.
    """
    judged = [(item, [r for r in item["responses"] if r["score"] is not None]) for item in items]
    usable = [(item, responses) for item, responses in judged if responses]
    responses = [r for item in items for r in item["responses"]]
    found: dict[str, Measure] = {}
    if usable:
        found |= _accuracies(usable)
        found["score"] = mean([_mean([r["score"] for r in kept]) for _, kept in usable])
        found |= _parts_of(usable)
    statuses = Counter(r["status"] for r in responses)
    several = len(responses) > len(items)
    rate = _rate_of_many if several else share
    found["unparsed_rate"] = rate([r["status"] in ("unparsed", "empty") for r in responses])
    found["limit_rate"] = rate([r["finish"] == "length" for r in responses])
    found["mean_tokens"] = mean([_mean([float(r["tokens"]) for r in item["responses"]]) for item in items])
    found["errors"] = count(statuses["error"], len(responses))
    found["timeouts"] = count(statuses["timeout"], len(responses))
    return _headline_first(found, headline)


def _accuracies(usable: Sequence[tuple[Item, Sequence[Item]]]) -> dict[str, Measure]:
    right = [[r["status"] == "correct" for r in kept] for _, kept in usable]
    n = min(len(hits) for hits in right)
    found: dict[str, Measure] = {}
    if max(len(hits) for hits in right) == 1:
        found["accuracy"] = share([hits[0] for hits in right])
    else:
        found["accuracy"] = mean([_mean([float(hit) for hit in hits]) for hits in right])
        for k in sorted({1, *(2**i for i in range(1, n.bit_length())), n}):
            values = [pass_at_k(len(hits), sum(hits), k) for hits in right]
            found[f"pass@{k}"] = mean([value for value in values if value is not None])
        found[f"maj@{n}"] = share([_majority_is_right(kept[:n]) for _, kept in usable])
    groups = [item.get("group") for item, _ in usable]
    if all(group is not None for group in groups) and len(set(groups)) > 1:
        found["macro_accuracy"] = mean(
            [_mean([float(hit) for hit in hits]) for hits in right], [str(g) for g in groups]
        )
    return found


def _majority_is_right(responses: Sequence[Item]) -> bool:
    """Whether the answer that most samples give, read as text, is right; of equally frequent ones the earliest."""
    answers = [r["answer"] for r in responses if r["answer"] is not None]
    if not answers:
        return False
    winner = Counter(answers).most_common(1)[0][0]
    return any(r["answer"] == winner and r["status"] == "correct" for r in responses)


def _parts_of(usable: Sequence[tuple[Item, Sequence[Item]]]) -> dict[str, Measure]:
    names = sorted({name for _, kept in usable for r in kept for name in r["parts"]})
    return {
        name: mean([_mean([r["parts"].get(name, 0.0) for r in kept]) for _, kept in usable]) for name in names
    }  # fmt: skip


def _rate_of_many(hits: Sequence[bool]) -> Measure:
    return Measure(value=sum(hits) / len(hits), count=len(hits))


def measures_of_choices(items: Sequence[Item], headline: str) -> dict[str, Measure]:
    """Metrics of compared continuations: the likeliest one by sum, per character and per token.

    ``close_calls`` counts items whose best two sums lie within twice the standard error of their difference: more draws
    could turn them.
    """
    found = {
        name: share([bool(item["chosen"][name] == item["right"]) for item in items])
        for name in ("accuracy", "accuracy_per_character", "accuracy_per_token")
    }
    groups = [item.get("group") for item in items]
    if all(group is not None for group in groups) and len(set(groups)) > 1:
        hits = [float(item["chosen"][headline] == item["right"]) for item in items]
        found["macro_accuracy"] = mean(hits, [str(group) for group in groups])
    found["logp_of_right"] = mean([item["choices"][item["right"]]["logp"] for item in items])
    found["close_calls"] = count(sum(item["close_call"] for item in items), len(items))
    return _headline_first(found, headline)


def _headline_first(found: Mapping[str, Measure], headline: str) -> dict[str, Measure]:
    if headline not in found:
        return dict(found)
    return {headline: found[headline], **{name: value for name, value in found.items() if name != headline}}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
