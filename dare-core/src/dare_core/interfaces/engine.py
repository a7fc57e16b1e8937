"""Engines: micro-batches, devices, gradients and optimizer behind few verbs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dare_core.errors import NonFiniteError
from dare_core.interfaces.algorithm import Algorithm
from dare_core.interfaces.likelihood import LikelihoodEstimator
from dare_core.types import Advantages, Estimate, LossInputs, LossOutput, Progress, Rows, Scores, ValueInputs, Views

if TYPE_CHECKING:
    from torch import Tensor

    from dare_core.api import SectionConfig
    from dare_core.interfaces.model import ModelAdapter
    from dare_core.spec.sections import OptimSection, PeftSection

PolicyName = Literal["live", "reference"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Scores -> loss: an estimator, an algorithm and the batch they work on. Data, not a closure.

    ``old`` is None at the first inner update, where the old policy is the live one. ``values`` [N,L] are the value
    model's before the first inner update. With the role ``value`` it is the value model that is scored and trained.
    """

    estimator: LikelihoodEstimator
    algorithm: Algorithm
    rows: Rows
    views: Views
    progress: Progress
    advantages: Advantages | None = None
    old: Estimate | None = None
    reference: Estimate | None = None
    values: Tensor | None = None
    role: Literal["policy", "value"] = "policy"

    def __call__(self, scores: Scores) -> LossOutput:
        """The loss and metrics for the scores of all views.

        Raises:
            TypeError: the value model's role without values.
        """
        if self.role == "value":
            return self.algorithm.value_loss(self._value_inputs(scores))
        live = self.estimator.reduce(self.views, scores, self.rows)
        return self.algorithm.loss(
            LossInputs(
                rows=self.rows,
                views=self.views,
                scores=scores,
                live=live,
                old=self.old if self.old is not None else live.detached(),
                reference=self.reference,
                advantages=self.advantages,
                progress=self.progress,
                values=self.values,
            )
        )

    def _value_inputs(self, scores: Scores) -> ValueInputs:
        if scores.value is None or self.values is None:
            raise TypeError("a value model's objective needs values of the views, live ones and those before")
        return ValueInputs(
            rows=self.rows,
            views=self.views,
            live=scores.value,
            old=self.values,
            advantages=self.advantages,
            progress=self.progress,
        )


@dataclass(frozen=True, kw_only=True)
class EngineInputs:
    """What an engine is built from: ``Engine(config, inputs)``.

    Attributes:
        adapter: the model to train, adapters attached: the policy, or a value model, which gets an engine of its own.
        optim: optimizer options.
        peft: adapter options, or None for full training.
        total_updates: optimizer steps of the whole run, for schedules.
        keep_reference: whether a reference policy is needed.
        seed: the run's seed.
    """

    adapter: ModelAdapter
    optim: OptimSection
    peft: PeftSection | None
    total_updates: int
    keep_reference: bool
    seed: int


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One optimizer step: ``applied`` is False if a non-finite gradient was skipped, as configured."""

    applied: bool
    grad_norm: float
    learning_rate: float
    metrics: Mapping[str, float] = field(default_factory=dict)


class Engine(ABC):
    """Scores views, gathers gradients and steps. ``local`` is the reference others are tested against."""

    adapter: ModelAdapter

    def __init__(self, config: SectionConfig, inputs: EngineInputs) -> None:
        self.config = config
        self.inputs = inputs
        self.adapter = inputs.adapter

    @abstractmethod
    def score(
        self, views: Views, policy: PolicyName, *, entropy: bool = False, parts: Sequence[Tensor] | None = None
    ) -> Scores:
        """Scores of all views without gradient, in evaluation mode.

        Args:
            views: N views.
            policy: whose scores.
            entropy: also entropies.
            parts: indices [M] of views to compute together, each view once; default: micro-batches by token budget.
                The last bits of a score depend on its neighbours, so policies to be compared exactly share them.
        """

    def policy(self, name: PolicyName) -> AbstractContextManager[None]:
        """While open, the adapter is this policy; for rollouts that mix policies.

        Raises:
            TypeError: the engine cannot switch the adapter.
        """
        raise TypeError(f"{type(self).__name__} cannot switch its adapter to the {name} policy")

    @abstractmethod
    def accumulate(self, views: Views, upstream: Scores) -> None:
        """Add the gradient of ``sum(upstream * score(views))`` to the parameters', in micro-batches.

        Raises:
            NonFiniteError: a score or gradient is not finite; names tensor, step and sample.
        """

    @abstractmethod
    def accumulate_direct(self, views: Views, objective: Objective, parts: list[Tensor]) -> Scores:
        """One-pass form: for each part (indices [M] of views whose rows share no loss term with other parts)
        score with gradient, take the objective with the other parts' scores held constant, and backward.

        Returns:
            The detached scores of all views.
        """

    @abstractmethod
    def fits(self, views: Views) -> bool:
        """Whether these views fit in one micro-batch."""

    @abstractmethod
    def token_budget(self) -> int:
        """Tokens that one micro-batch may hold."""

    @abstractmethod
    def step(self) -> StepReport:
        """Clip, step the optimizer and the schedule, and clear gradients."""

    @abstractmethod
    def reject(self, error: NonFiniteError) -> StepReport:
        """Deal with an update whose scores, loss or gradients are not finite: raise ``error``, or clear the gradients
        and report a step that was not applied, as configured. Either way no weight changes."""

    @abstractmethod
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Names (published keys) and tensors of the current policy, adapters merged; for weight sync."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write trainer state (optimizer, schedule, counters, reference if it moved) as safetensors and json."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote, bit for bit."""

    @abstractmethod
    def counters(self) -> Mapping[str, Any]:
        """``forwards`` (views scored, once per forward), ``forward_tokens``, ``backward_tokens`` since the run's start,
        and ``peak_memory`` in bytes, for the ledger."""
