"""Evaluators: held-out scores bound to their protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dare_core.types import Address, DecodingSettings, ModelFacts, Prompt

if TYPE_CHECKING:
    from dare_core.interfaces.model import ModelAdapter, TextCodec
    from dare_core.interfaces.reward import Reward
    from dare_core.interfaces.rollout import RolloutBackend
    from dare_core.spec.sections import EvaluatorSection


@dataclass(frozen=True, kw_only=True)
class EvaluationContext:
    """What evaluation inside a run shares with training: ``Evaluator(config).evaluate(context)``.

    Attributes:
        backend: generates with the live policy.
        decoding: the run's decoding protocol; evaluators may override fields and record what they used.
        reward: the run's reward, or None.
        seed: seed of sampling draws.
        step: optimizer steps' rollouts done so far.
        address: where sampling draws are addressed; None = at the evaluator's own name.
    """

    backend: RolloutBackend
    decoding: DecodingSettings
    reward: Reward | None
    seed: int
    step: int
    address: Address | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Scores with all that produced them.

    Attributes:
        metrics: e.g. ``{"reward": 0.31, "correct_rate": 0.25, "items": 128}``.
        protocol: every setting the score depends on, JSON values only.
        items: per item: id, prompt, response, verdict; JSON values only.
    """

    metrics: Mapping[str, float]
    protocol: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number over items with the uncertainty that comes from their being a sample.

    Attributes:
        value: the number; shares are 0 to 1.
        count: items it is over.
        low, high: 95 % interval; None where the number is a plain count.
        method: how the interval is made.
    """

    value: float
    count: int
    low: float | None = None
    high: float | None = None
    method: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One published score and how it is made again.

    Attributes:
        name: of the row and its folder.
        kind, task: evaluator and its task.
        options: dotted ``rollout.*`` and ``eval.*`` options.
        score: 0 to 1; None where none is known.
        metric: which metric it is; None = the result's headline.
        questions: how many questions it is over; None where that is not known.
        differences: how the protocol differs from the published one, one sentence each.
    """

    name: str
    kind: str
    task: str
    options: Mapping[str, Any]
    score: float | None
    metric: str | None
    questions: int | None
    differences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PublishedColumn:
    """One model's scores: its name, the model families it may be loaded as, and its rows."""

    title: str
    kinds: tuple[str, ...]
    rows: tuple[PublishedRow, ...]


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A published table: name, version, one line, citation, what holds for all of it, and its columns by name."""

    name: str
    version: int
    title: str
    source: str
    note: str
    columns: Mapping[str, PublishedColumn]


class Evaluator(ABC):
    """Built as ``Evaluator(config)``."""

    def __init__(self, config: EvaluatorSection) -> None:
        self.config = config

    def prepare(self, training: Sequence[Prompt], codec: TextCodec, reward: Reward | None) -> None:
        """Read and check what the evaluation needs, once, before the first step.

        Args:
            training: the prompts that are trained on.
            codec: the model's text codec.
            reward: the run's reward, or None.

        Raises:
            UserError: data or reward are missing what the evaluation needs, or training prompts are among its own.
        """

    def check_rows(self, codec: TextCodec, facts: ModelFacts, new_tokens: int | None) -> None:
        """Refuse rows that the model cannot take, once, after :meth:`prepare` and before weights are read.

        Args:
            codec: the model's text codec.
            facts: of the model.
            new_tokens: of the run's decoding, or None where nothing is generated.

        Raises:
            UserError: rows are too long, or hold tokens outside the vocabulary; each is named.
        """

    @abstractmethod
    def evaluate(self, context: EvaluationContext) -> EvaluationResult:
        """Score the live policy. Changes no training state and draws from its own addresses.

        Raises:
            UserError: data or reward are missing what the evaluation needs.
        """

    def close(self) -> None:
        """Free worker processes."""


class ScoringEvaluator(Evaluator):
    """An evaluator that only scores given text: it needs no rollout section."""

    @abstractmethod
    def score(self, adapter: ModelAdapter, seed: int, step: int) -> EvaluationResult:
        """Score the live policy behind ``adapter``, which is in evaluation mode.

        Raises:
            UserError: a row does not fit the model.
        """

    def evaluate(self, context: EvaluationContext) -> EvaluationResult:
        """See :meth:`Evaluator.evaluate`."""
        return self.score(context.backend.adapter, context.seed, context.step)


class ItemEvaluator(Evaluator):
    """An evaluator whose items do not depend on each other: they can be kept as they finish, split over processes, and
    measured again from what was kept. This is what ``dare eval`` runs.
    """

    @abstractmethod
    def keys(self) -> Sequence[str]:
        """Keys of all items, in order; known after :meth:`prepare`."""

    @abstractmethod
    def protocol(self, context: EvaluationContext) -> Mapping[str, Any]:
        """Every setting the scores depend on, JSON values only; the same for every shard."""

    @abstractmethod
    def items(self, context: EvaluationContext, keys: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """The finished items of ``keys``, in that order: JSON objects with at least ``key``, and ``tokens`` generated.
        An item does not depend on which others are asked for."""

    @abstractmethod
    def measure(self, items: Sequence[Mapping[str, Any]]) -> Mapping[str, Measure]:
        """The metrics, from stored items alone; the first one is the result's headline."""

    @abstractmethod
    def judged_again(self, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The items with the verdicts that the present rule gives their stored responses."""

    @classmethod
    def published(cls) -> Mapping[str, PublishedTable]:
        """Published tables that this evaluator's package knows, by name: what ``dare eval --preset`` offers."""
        return {}

    def check_fit(self, facts: ModelFacts, decoding: DecodingSettings) -> None:
        """Look whether every item fits the model, before its weights are read.

        Raises:
            UserError: names the items that do not.
        """

    def wishes(self) -> Mapping[str, Any]:
        """Decoding options that the task wants where nobody says otherwise, e.g. ``{"rollout.new_tokens": 256}``."""
        return {}

    def evaluate(self, context: EvaluationContext) -> EvaluationResult:
        """See :meth:`Evaluator.evaluate`."""
        items = list(self.items(context, self.keys()))
        metrics = {name: measure.value for name, measure in self.measure(items).items()}
        return EvaluationResult(metrics=metrics, protocol=self.protocol(context), items=items)
