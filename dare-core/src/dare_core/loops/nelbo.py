"""The negative ELBO of answers that are not trained on.

Every answer of n tokens is scored on ``draws`` masks whose numbers of hidden tokens x are spread evenly over 1..n
(:func:`dare_core.diffusion.counts.systematic_counts`), with weight n / x: an unbiased estimate on a grid of noise
levels. Draws are addressed by the evaluation's name and the row, not by the step, so every evaluation meets the same
masks and differences come from the weights alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dare_core.data.examples import ExampleSet
from dare_core.data.fitting import refuse_misfits
from dare_core.data.rows import demonstration_rows
from dare_core.diffusion.corruption import build_views, view_noise
from dare_core.diffusion.counts import count_mask, systematic_counts, uniform_counts
from dare_core.diffusion.seeds import uniforms
from dare_core.engine.microbatches import by_token_budget, view_tokens
from dare_core.errors import Problem, UserError
from dare_core.interfaces import EvaluationResult, ModelAdapter, Reward, ScoringEvaluator, TextCodec
from dare_core.loops.config import NelboSection
from dare_core.loops.overlap import refuse_overlap
from dare_core.run.manifest import installed_versions
from dare_core.spec.sections import DataSection
from dare_core.types import Address, ModelFacts, Prompt, Rows, Views

#: answers whose views are laid out together; small, since each is laid out ``draws`` times
_ROWS = 32


class Nelbo(ScoringEvaluator):
    """``nelbo_per_token``, its exponential, and ``elbo_per_token``, which rises as the model learns."""

    config: NelboSection

    def __init__(self, config: NelboSection) -> None:
        super().__init__(config)
        self._examples: ExampleSet | None = None

    def prepare(self, training: Sequence[Prompt], codec: TextCodec, reward: Reward | None) -> None:
        """Read the rows, and refuse rows that are trained on or have no answer."""
        path = f"eval.{self.config.name}.data"
        if isinstance(self.config.data.config, DataSection) and self.config.data.config.trained_turns == "one":
            message = "'one' draws an answer at each training step, and an evaluation has none"
            raise UserError(Problem(message, path=f"{path}.trained_turns", hint="take 'last' or 'all'"))
        source = self.config.data.target()(self.config.data.config)
        examples = ExampleSet.read(source.config, source, codec)
        if not examples.demonstrations:
            raise UserError(
                Problem("nelbo scores answers, and these rows have none", path=path, hint="give 'completion'")
            )
        if not self.config.allow_overlap:
            refuse_overlap(training, examples.prompts, path)
        self._examples = examples

    def check_rows(self, codec: TextCodec, facts: ModelFacts, new_tokens: int | None) -> None:
        """See :meth:`Evaluator.check_rows`; answers are given, so nothing is generated."""
        if self._examples is not None:
            refuse_misfits(self._examples, codec, facts, path=f"eval.{self.config.name}.data")

    def score(self, adapter: ModelAdapter, seed: int, step: int) -> EvaluationResult:
        """See :meth:`ScoringEvaluator.score`."""
        if self._examples is None:
            raise ValueError("prepare() comes before score()")
        items = [item for rows in self._batches(self._examples, adapter) for item in self._items(rows, adapter, seed)]
        tokens, total = sum(item["tokens"] for item in items), sum(item["nelbo"] for item in items)
        variance = sum(item["draw_error"] ** 2 for item in items)
        metrics = {
            "nelbo_per_token": total / tokens,
            "elbo_per_token": -total / tokens,
            "perplexity_bound": float(torch.tensor(total / tokens, dtype=torch.float64).exp()),
            "draw_error": variance**0.5 / tokens,
            "tokens": float(tokens),
            "items": float(len(items)),
        }
        return EvaluationResult(metrics=metrics, protocol=self._protocol(self._examples, adapter, seed), items=items)

    @staticmethod
    def _batches(examples: ExampleSet, adapter: ModelAdapter) -> Iterator[Rows]:
        for start in range(0, len(examples.demonstrations), _ROWS):
            yield demonstration_rows(examples.demonstrations[start : start + _ROWS], adapter.text, adapter.facts)

    def _items(self, rows: Rows, adapter: ModelAdapter, seed: int) -> list[dict[str, Any]]:
        views = nelbo_views(rows, adapter.facts, Address(seed, f"eval/{self.config.name}"), self.config.draws)
        sums = torch.zeros(len(views), dtype=torch.float64)
        with torch.no_grad():
            for part in by_token_budget(view_tokens(views), self.config.tokens_per_microbatch):
                chosen = views.take(part)
                logp = adapter.token_logp(chosen).logp.to("cpu", torch.float64)
                sums[part] = torch.where(chosen.scored, chosen.weight * logp, 0.0).sum(dim=1)
        by_row = sums.view(len(rows), self.config.draws)
        error = by_row.std(dim=1) / self.config.draws**0.5 if self.config.draws > 1 else torch.zeros(len(rows))
        return [
            {"id": name, "tokens": int(length), "nelbo": -float(value), "draw_error": float(spread)}
            for name, length, value, spread in zip(
                rows.example_id, rows.response.sum(dim=1), by_row.mean(dim=1), error, strict=True
            )
        ]

    def _protocol(self, examples: ExampleSet, adapter: ModelAdapter, seed: int) -> dict[str, Any]:
        return {
            "evaluator": "nelbo",
            "data": self.config.data.config.model_dump(mode="json"),
            "data_kind": self.config.data.name,
            "data_fingerprint": examples.fingerprint,
            "items": len(examples),
            "dropped": {reason: len(ids) for reason, ids in examples.dropped.items()},
            "draws": self.config.draws,
            "seed": seed,
            "model": adapter.describe(),
            "versions": installed_versions(),
        }


def nelbo_views(rows: Rows, facts: ModelFacts, address: Address, draws: int) -> Views:
    """``draws`` views of each row, ordered by (row, draw), in the model's own layout."""
    row = torch.arange(len(rows)).repeat_interleave(draws)
    draw = torch.arange(draws).repeat(len(rows))
    sample, response = rows.sample_id[row], rows.response[row]
    length: Tensor = response.sum(dim=1)
    start = uniform_counts(uniforms(address.within("count"), sample, 0, 1)[:, 0], 1, length)
    count = systematic_counts(start, draw, draws, 1, length)
    return build_views(
        rows,
        count_mask(uniforms(address, sample, draw, rows.tokens.shape[1]), count, response),
        mask_id=facts.mask_id,
        noise=view_noise(facts, address, sample, draw, rows.tokens.shape[1]),
        layout=facts.layout,
        row=row,
        draw=draw,
        weight=(length.to(torch.float64) / count)[:, None],
    )
