"""The run's reward on rows that are not trained on.

Responses are decoded by the run's own protocol except for the temperature. Random draws are addressed by the
evaluation's name and not by the step: every evaluation meets the same noise, so that differences between steps
come from the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dare_core.data.examples import ExampleSet
from dare_core.data.fitting import refuse_misfits
from dare_core.errors import Problem, UserError
from dare_core.interfaces import (
    EvaluationContext,
    EvaluationResult,
    Evaluator,
    Reward,
    RolloutBackend,
    RolloutRequest,
    TextCodec,
)
from dare_core.loops.config import HeldOutSection
from dare_core.loops.overlap import refuse_overlap
from dare_core.run.manifest import installed_versions
from dare_core.types import Address, DecodingSettings, ModelFacts, Prompt, Rollout, Verdict, VerdictStatus


class HeldOut(Evaluator):
    """Mean reward, share of correct responses, and how many could not be judged."""

    config: HeldOutSection

    def __init__(self, config: HeldOutSection) -> None:
        super().__init__(config)
        self._examples: ExampleSet | None = None

    def prepare(self, training: Sequence[Prompt], codec: TextCodec, reward: Reward | None) -> None:
        """Read the rows, let the reward look at them, and refuse rows that are trained on."""
        if reward is None:
            raise UserError(Problem("held-out scores responses by the run's reward, and there is none", path="reward"))
        source = self.config.data.target()(self.config.data.config)
        self._examples = ExampleSet.read(source.config, source, codec)
        reward.check(self._examples.prompts)
        if not self.config.allow_overlap:
            refuse_overlap(training, self._examples.prompts, f"eval.{self.config.name}.data")

    def check_rows(self, codec: TextCodec, facts: ModelFacts, new_tokens: int | None) -> None:
        """See :meth:`Evaluator.check_rows`."""
        if self._examples is not None and new_tokens is not None:
            refuse_misfits(self._examples, codec, facts, new_tokens, f"eval.{self.config.name}.data")

    def evaluate(self, context: EvaluationContext) -> EvaluationResult:
        """See :meth:`Evaluator.evaluate`."""
        if self._examples is None or context.reward is None:
            raise ValueError("prepare() comes before evaluate(), with a reward")
        settings = context.decoding
        if self.config.temperature is not None:
            settings = replace(settings, temperature=self.config.temperature)
        request = RolloutRequest(
            prompts=self._examples.prompts,
            samples=self.config.samples,
            settings=settings,
            address=Address(context.seed, f"eval/{self.config.name}"),
            policy_version=context.step,
        )
        rollout = context.backend.generate(request)
        prompts = [prompt for prompt in self._examples.prompts for _ in range(self.config.samples)]
        verdicts = context.reward.judge(prompts, rollout.text)
        return EvaluationResult(
            metrics=_metrics(rollout, verdicts),
            protocol=self._protocol(settings, context, self._examples),
            items=[_item(row, prompts[row], rollout, verdict) for row, verdict in enumerate(verdicts)],
        )

    def _protocol(
        self, settings: DecodingSettings, context: EvaluationContext, examples: ExampleSet
    ) -> Mapping[str, Any]:
        reward = context.reward
        protocol = {
            "evaluator": "held-out",
            "data": self.config.data.config.model_dump(mode="json"),
            "data_kind": self.config.data.name,
            "data_fingerprint": examples.fingerprint,
            "items": len(examples),
            "dropped": {reason: len(ids) for reason, ids in examples.dropped.items()},
            "samples": self.config.samples,
            "decoding": asdict(settings),
            "seed": context.seed,
            "reward": type(reward).__name__,
            "reward_options": None if reward is None else reward.config.model_dump(mode="json"),
            **_generator(context.backend),
            "versions": installed_versions(),
        }
        text = json.dumps(protocol, sort_keys=True, default=str)
        plain: dict[str, Any] = json.loads(text)
        return plain | {"hash": hashlib.sha256(text.encode()).hexdigest()}


def _generator(backend: RolloutBackend) -> dict[str, Any]:
    return {
        "backend": backend.config.model_dump(mode="json"),
        "backend_exactness": backend.exactness,
        "model": backend.adapter.describe(),
    }


def _metrics(rollout: Rollout, verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Means over judged responses; shares and ``items`` over all."""
    count = len(verdicts)
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    statuses = Counter(verdict.status for verdict in verdicts)
    return {
        "reward": sum(scores) / len(scores) if scores else float("nan"),
        "correct_rate": statuses[VerdictStatus.CORRECT] / count,
        "unparsed_rate": statuses[VerdictStatus.UNPARSED] / count,
        "items": float(count),
        "judged": float(len(scores)),
        "tokens": float(rollout.completion.sum()) / count,
        "limit_share": sum(finish == "length" for finish in rollout.finish) / count,
        "forwards": float(rollout.forwards.sum()) / count,
        **{f"verdicts/{status.value}": float(statuses[status]) for status in VerdictStatus},
    }


def _item(row: int, prompt: Prompt, rollout: Rollout, verdict: Verdict) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "sample": int(rollout.sample_id[row]),
        "prompt": prompt.text if prompt.text is not None else [[m.role, m.content] for m in prompt.messages],
        "reference": prompt.reference,
        "response": rollout.text[row],
        "finish": rollout.finish[row],
        "score": verdict.score,
        "status": verdict.status.value,
        "detail": verdict.detail,
    }
