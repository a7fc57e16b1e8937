"""Likelihood estimates and losses on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from dare_core.types._shapes import expect_shape

if TYPE_CHECKING:
    from torch import Tensor

    from dare_core.types.batch import Advantages, Rows
    from dare_core.types.views import Scores, Views

EstimateShape = Literal["row", "view", "token", "view-token"]
Bound = Literal["exact", "lower", "surrogate"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A log-likelihood estimate (nats).

    Attributes:
        value: shape by ``per``: [B] row, [N] view, [B,L] token, [N,L] view-token.
        per: what one entry belongs to.
        bound: ``exact`` log-probability, ``lower`` bound in expectation (ELBO), or ``surrogate``.
        mask: same shape as ``value``, bool: entries that carry an estimate; the others are 0.
        upper: an upper estimate of the same shape, or None.
        draws: Monte-Carlo draws per row.
        stderr: same shape as ``value``, standard error over draws, or None.
    """

    value: Tensor
    per: EstimateShape
    bound: Bound
    mask: Tensor
    upper: Tensor | None = None
    draws: int = 1
    stderr: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("mask", "upper", "stderr"):
            tensor = getattr(self, name)
            if tensor is not None:
                expect_shape("Estimate", name, tensor, self.value.shape, self.per)

    def detached(self) -> Estimate:
        """The same numbers without gradient."""
        return replace(self, value=self.value.detach(), upper=None if self.upper is None else self.upper.detach())


@dataclass(frozen=True, slots=True)
class Metric:
    """A weighted sum, so that metrics of parts add up to the metric of the whole: value = total / weight."""

    total: float
    weight: float

    def __add__(self, other: Metric) -> Metric:
        return Metric(self.total + other.total, self.weight + other.weight)

    @property
    def value(self) -> float:
        """The weighted mean; NaN without weight."""
        return self.total / self.weight if self.weight else float("nan")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the run stands: ``step`` of ``total`` optimizer steps' rollouts, ``inner`` of ``inner_total`` updates."""

    step: int
    total: int
    inner: int = 0
    inner_total: int = 1


@dataclass(frozen=True, kw_only=True)
class BatchInputs:
    """What every loss may depend on.

    Attributes:
        rows: the optimizer step's whole batch.
        views: the plan that was scored.
        advantages: per row, or None where the algorithm has none (SFT, preference).
        progress: where the run stands.
    """

    rows: Rows
    views: Views
    advantages: Advantages | None
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class LossInputs(BatchInputs):
    """All that a policy's loss may depend on.

    Attributes:
        scores: live scores of the views (entropy and the like live here), with gradient.
        live: estimate under the policy being trained, with gradient.
        old: estimate under the policy before the first inner update, on the same views; equals ``live``
            detached at the first one.
        reference: estimate under the reference policy, or None.
        values: [N,L] what the value model said of the views before the first inner update; None without one.
    """

    scores: Scores
    live: Estimate
    old: Estimate
    reference: Estimate | None
    values: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class ValueInputs(BatchInputs):
    """All that a value model's loss may depend on.

    Attributes:
        live: [N,L] values of the views' scored positions under the value model being trained, with gradient.
        old: [N,L] those before the first inner update.
    """

    live: Tensor
    old: Tensor

    def __post_init__(self) -> None:
        expect_shape("ValueInputs", "old", self.old, self.live.shape, "[N,L]")


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """A scalar to minimise and what to log about it."""

    loss: Tensor
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expect_shape("LossOutput", "loss", self.loss, (), "a scalar")


__all__ = [
    "BatchInputs",
    "Bound",
    "Estimate",
    "EstimateShape",
    "LossInputs",
    "LossOutput",
    "Metric",
    "Progress",
    "ValueInputs",
]
