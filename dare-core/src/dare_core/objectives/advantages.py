"""Group-relative advantages: how much better a response was than the others to the same prompt.

With R_i the reward of row i and g its group (rows of one prompt, in any order)::

    mean baseline            A_i = R_i - mean_g R                        Shao et al. 2024 (GRPO), without its scale
    no baseline              A_i = R_i                                   Williams 1992 (REINFORCE)
    leave-one-out baseline   A_i = R_i - mean_{k in g, k != i} R_k       Kool et al. 2019; = G/(G-1) x the above
    scale                    A_i / (std_g + eps)                         GRPO; n-1 or n in the variance

Rows whose verdict failed are not usable: they enter no statistic, get 0, and carry no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dare_core.types import Advantages, Rows, Verdict

Baseline = Literal["mean", "leave-one-out", "none"]
Scale = Literal["none", "std", "population-std"]
Single = Literal["zero", "raw"]


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Statistics of each row's group over its usable rows, float64.

    Attributes:
        count: [B] usable rows.
        mean: [B] mean score; 0 in groups without usable rows.
        squares: [B] sum of squared deviations; exactly 0 where all scores are equal.
        index: [B] int64 number of the group, from 0.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    index: Tensor

    def std(self, *, population: bool = False) -> Tensor:
        """[B] standard deviation, over n - 1 or over n; 0 for groups of one."""
        divisor = self.count if population else self.count - 1
        return (self.squares / divisor.clamp(min=1)).sqrt()


def group_statistics(scores: Tensor, group: Tensor, usable: Tensor) -> GroupStatistics:
    """Statistics of ``scores`` [B] by ``group`` [B] over ``usable`` [B] bool rows."""
    groups, index = torch.unique(group, return_inverse=True)
    value = torch.where(usable, scores.to(torch.float64), 0.0)

    def per_group(x: Tensor) -> Tensor:
        return torch.zeros(len(groups), dtype=torch.float64, device=scores.device).index_add(0, index, x)

    count = per_group(usable.to(torch.float64))
    mean = (per_group(value) / count.clamp(min=1))[index]
    lowest = torch.full_like(count, torch.inf).scatter_reduce(0, index, value.masked_fill(~usable, torch.inf), "amin")
    highest = torch.full_like(count, -torch.inf).scatter_reduce(
        0, index, value.masked_fill(~usable, -torch.inf), "amax"
    )
    flat = (highest <= lowest)[index]
    # A mean of equal numbers can differ from them in the last bit; dividing that by eps would be noise.
    mean = torch.where(flat & usable, value, mean)
    squares = per_group(torch.where(usable, (value - mean) ** 2, 0.0))
    return GroupStatistics(count=count[index], mean=mean, squares=squares[index], index=index)


def group_relative(
    scores: Tensor,
    group: Tensor,
    usable: Tensor | None = None,
    *,
    baseline: Baseline = "mean",
    scale: Scale = "none",
    eps: float = 1e-6,
    single: Single = "zero",
) -> Tensor:
    """Advantages of ``scores`` within their groups; rows may stand in any order.

    Args:
        scores: [B] rewards; NaN allowed where not usable.
        group: [B] int64 group ids.
        usable: [B] bool; default: the finite scores.
        baseline: what is subtracted.
        scale: what divides: nothing, the sample std (n - 1) + eps or the population std (n) + eps.
        eps: added to the std.
        single: a group with one usable row has neither baseline nor std: advantage 0, or ``raw``, its score with mean 0
            and std 1.

    Returns:
        [B] in the dtype of ``scores``; 0 where not usable.
    """
    usable = torch.isfinite(scores) if usable is None else usable
    groups = group_statistics(scores, group, usable)
    value = torch.where(usable, scores.to(torch.float64), 0.0)
    advantage = value if baseline == "none" else value - groups.mean
    if baseline == "leave-one-out":
        advantage = advantage * groups.count / (groups.count - 1).clamp(min=1)
    divisor = torch.ones_like(advantage)
    if scale != "none":
        divisor = groups.std(population=scale == "population-std") + eps
    alone = groups.count <= 1
    if baseline != "none" or scale != "none":
        advantage = torch.where(alone, value / (1 + eps * (scale != "none")) if single == "raw" else 0.0, advantage)
    divisor = torch.where(alone, 1.0, divisor)
    return torch.where(usable, advantage / divisor, 0.0).to(scores.dtype)


def group_softmax(value: Tensor, group: Tensor, usable: Tensor) -> Tensor:
    """[B]: softmax of ``value`` [B] over the usable rows of each group; 0 elsewhere, so that a group sums to 1 or 0."""
    groups, index = torch.unique(group, return_inverse=True)
    masked = torch.where(usable, value, -torch.inf)
    highest = torch.full((len(groups),), -torch.inf, dtype=value.dtype, device=value.device)
    highest = highest.scatter_reduce(0, index, masked, "amax")[index]
    exponential = torch.where(usable, (masked - highest).exp(), 0.0)
    total = torch.zeros_like(groups, dtype=value.dtype).index_add(0, index, exponential)
    return exponential / total[index].clamp(min=1)


def kept_groups(
    scores: Tensor, group: Tensor, usable: Tensor, *, mean_range: tuple[float, float] | None, drop_flat: bool
) -> Tensor:
    """[B] bool: usable rows whose group teaches something.

    Args:
        scores: [B] rewards.
        group: [B] int64.
        usable: [B] bool.
        mean_range: the group's mean score must lie in [low, high], bounds included; None = anywhere.
        drop_flat: leave out groups whose usable scores do not differ.
    """
    groups = group_statistics(scores, group, usable)
    kept = usable.clone()
    if mean_range is not None:
        kept &= (groups.mean >= mean_range[0]) & (groups.mean <= mean_range[1])
    if drop_flat:
        kept &= groups.squares > 0
    return kept


def verdict_scores(verdicts: Sequence[Verdict]) -> tuple[Tensor, Tensor]:
    """(scores [B] float32, usable [B] bool): score 0 and not usable where a verdict has no finite score."""
    scores = torch.tensor([float("nan") if v.score is None else v.score for v in verdicts], dtype=torch.float32)
    usable = torch.isfinite(scores)
    return torch.where(usable, scores, 0.0), usable


def score_metrics(scores: Tensor, group: Tensor, usable: Tensor) -> dict[str, float]:
    """What the rewards of a batch say about whether there is anything to learn.

    Returns:
        ``reward_mean`` and ``reward_std`` (over n - 1) of usable rows, absent without any;
        ``zero_variance_share``: groups whose usable scores do not differ, among groups with a usable row (1
        without any); ``unusable_share``: rows whose verdict failed.
    """
    groups = group_statistics(scores, group, usable)
    first = torch.zeros(int(groups.index.max()) + 1 if len(scores) else 0, dtype=torch.float64, device=scores.device)
    flat = first.index_copy(0, groups.index, (groups.squares == 0).to(torch.float64))
    counted = first.index_copy(0, groups.index, (groups.count > 0).to(torch.float64))
    metrics = {
        "zero_variance_share": float((flat * counted).sum() / counted.sum()) if counted.any() else 1.0,
        "unusable_share": float((~usable).to(torch.float64).mean()) if len(usable) else 0.0,
    }
    seen = scores[usable].to(torch.float64)
    if len(seen):
        metrics["reward_mean"] = float(seen.mean())
        metrics["reward_std"] = float(seen.std()) if len(seen) > 1 else 0.0
    return metrics


def rollout_advantages(
    rows: Rows,
    verdicts: Sequence[Verdict],
    *,
    baseline: Baseline = "mean",
    scale: Scale = "none",
    eps: float = 1e-6,
    single: Single = "zero",
    mean_range: tuple[float, float] | None = None,
    drop_flat: bool = False,
) -> Advantages:
    """Group-relative advantages [B] of rollout rows from their verdicts, with :func:`score_metrics`.

    Rows of groups that :func:`kept_groups` leaves out are not usable.

    Raises:
        ValueError: there is not one verdict per row.
    """
    if len(verdicts) != len(rows):
        raise ValueError(f"{len(verdicts)} verdicts for {len(rows)} rows")
    scores, usable = (x.to(rows.group.device) for x in verdict_scores(verdicts))
    value = group_relative(scores, rows.group, usable, baseline=baseline, scale=scale, eps=eps, single=single)
    statistics = score_metrics(scores, rows.group, usable)
    kept = kept_groups(scores, rows.group, usable, mean_range=mean_range, drop_flat=drop_flat)
    statistics["dropped_share"] = float((usable & ~kept).to(torch.float64).mean()) if len(kept) else 0.0
    return Advantages(value=torch.where(kept, value, 0.0), usable=kept, statistics=statistics)
