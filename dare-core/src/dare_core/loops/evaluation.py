"""Evaluation during a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dare_core.interfaces import (
    EvaluationContext,
    EvaluationResult,
    Evaluator,
    ModelAdapter,
    Reward,
    RolloutBackend,
    ScoringEvaluator,
)
from dare_core.run.folder import RunFolder
from dare_core.spec.sections import EvaluatorSection
from dare_core.types import DecodingSettings


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """The run's evaluators and what they share with training.

    Attributes:
        evaluators: as chosen, prepared.
        adapter: the live policy.
        backend: generates with it; None where no evaluator that generates is chosen.
        decoding: the run's protocol; None as above.
        reward: the run's reward, or None.
        seed: the run's seed.
        total_steps: the last step is always evaluated.
    """

    evaluators: Sequence[Evaluator]
    adapter: ModelAdapter
    backend: RolloutBackend | None
    decoding: DecodingSettings | None
    reward: Reward | None
    seed: int
    total_steps: int

    def due(self, step: int) -> list[Evaluator]:
        """Who evaluates after ``step`` training steps."""
        return [e for e in self.evaluators if self._is_due(e.config, step)]

    def _is_due(self, config: EvaluatorSection, step: int) -> bool:
        if step == 0:
            return config.at_start
        return step % config.every == 0 or step == self.total_steps

    def run(self, step: int, folder: RunFolder) -> Mapping[str, float]:
        """Evaluate whoever is due, write eval/step_N-<name>/, and return ``<name>/<metric>`` -> number."""
        metrics: dict[str, float] = {}
        for evaluator in self.due(step):
            result = self._result(evaluator, step)
            name = evaluator.config.name
            folder.write_evaluation(
                step, name, protocol=result.protocol, items=result.items, result={"step": step, **result.metrics}
            )
            metrics |= {f"{name}/{metric}": value for metric, value in result.metrics.items()}
        return metrics

    def _result(self, evaluator: Evaluator, step: int) -> EvaluationResult:
        if isinstance(evaluator, ScoringEvaluator):
            return evaluator.score(self.adapter, self.seed, step)
        if self.backend is None or self.decoding is None:
            raise ValueError("evaluators were chosen without a rollout backend")
        return evaluator.evaluate(
            EvaluationContext(
                backend=self.backend, decoding=self.decoding, reward=self.reward, seed=self.seed, step=step
            )
        )
