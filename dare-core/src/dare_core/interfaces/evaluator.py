"""Evaluators: held-out scores bound to their protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dare_core.types import DecodingSettings, Prompt

if TYPE_CHECKING:
    from dare_core.interfaces.model import TextCodec
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
    """

    backend: RolloutBackend
    decoding: DecodingSettings
    reward: Reward | None
    seed: int
    step: int


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

    @abstractmethod
    def evaluate(self, context: EvaluationContext) -> EvaluationResult:
        """Score the live policy. Changes no training state and draws from its own addresses.

        Raises:
            UserError: data or reward are missing what the evaluation needs.
        """
