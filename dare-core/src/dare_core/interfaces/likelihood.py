"""Likelihood estimators: rows -> views, scores -> estimate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_core.types import Address, AttentionLayout, Estimate, ModelFacts, Rows, Scores, Views

if TYPE_CHECKING:
    from torch import Tensor

    from dare_core.api import SectionConfig


@dataclass(frozen=True, kw_only=True)
class PlanContext:
    """What a plan may depend on besides its rows.

    Attributes:
        facts: ids and layout of the model.
        address: seed, purpose and step of the draws; different inner updates get different purposes.
        layout: how views attend; the model's own, or what the rollout used.
        selection: [S] int64 snapshots to plan, in this order, chosen by the algorithm; or None.
        temperature: at which the rollout sampled; 1 where nothing is sampled. Estimators that score the distribution
            sampled from divide logits by it.
    """

    facts: ModelFacts
    address: Address
    layout: AttentionLayout
    selection: Tensor | None = None
    temperature: float = 1.0


class LikelihoodEstimator(ABC):
    """Turns rows into views, and the scores of those views into an estimate.

    Built as ``Estimator(config)``. Draws are addressed by ``context.address``, the rows' sample ids and the
    draw, so that batch order, micro-batching and process count change nothing.
    """

    def __init__(self, config: SectionConfig) -> None:
        self.config = config

    @property
    def separate_views(self) -> bool:
        """Whether each line of the estimate depends on the scores of one view, its own."""
        return False

    @abstractmethod
    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """The views to score, ordered by (row, draw).

        Raises:
            UserError: the rows lack what the estimator needs (for example a replayable trace).
        """

    @abstractmethod
    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """The estimate from the scores of all ``views``; differentiable, small tensors only."""
