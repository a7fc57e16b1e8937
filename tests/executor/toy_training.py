"""A small estimator and losses to train toys with: no published algorithm, only what the executor promises about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from dare_core.api import SectionConfig
from dare_core.diffusion.seeds import uniforms
from dare_core.engine.config import LocalSection
from dare_core.engine.local import LocalEngine
from dare_core.interfaces import Algorithm, EngineInputs, LikelihoodEstimator, Objective, PlanContext, Separable
from dare_core.interfaces.model import ModelAdapter
from dare_core.spec.sections import OptimSection, PeftSection
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import (
    Address,
    Advantages,
    Estimate,
    LossInputs,
    LossOutput,
    Metric,
    Progress,
    Rollout,
    Rows,
    Scores,
    Verdict,
    Views,
)


def toy_rows(count: int = 6, group: int = 2, seed: int = 3, vocab: int = 8) -> Rows:
    """Rows of different lengths: prompts of 2-4 tokens, responses of 3-6."""
    generator = torch.Generator().manual_seed(seed)
    width = 10
    tokens = torch.randint(0, vocab - 2, (count, width), generator=generator)
    prompt_length = 2 + torch.arange(count) % 3
    length = prompt_length + 3 + (torch.arange(count) * 2) % 4
    column = torch.arange(width).expand(count, width)
    prompt = column < prompt_length[:, None]
    response = (column < length[:, None]) & ~prompt
    return Rows(
        tokens=torch.where(prompt | response, tokens, vocab - 2),
        prompt=prompt,
        response=response,
        completion=response,
        sample_id=100 + torch.arange(count),
        group=torch.arange(count) // group,
        example_id=tuple(f"row-{i // group}" for i in range(count)),
    )


class MaskSection(SectionConfig):
    draws: int = 3


class RandomMasks(LikelihoodEstimator):
    """``draws`` views per row, each response token masked with probability 1/2 and weighted by 2."""

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        draws, (count, width) = self.config.draws, rows.tokens.shape
        row = torch.arange(count).repeat_interleave(draws)
        draw = torch.arange(draws).repeat(count)
        masked = (uniforms(context.address, rows.sample_id[row], draw, width) < 0.5) & rows.response[row]
        return Views(
            inputs=torch.where(masked, context.facts.mask_id, rows.tokens[row]),
            targets=rows.tokens[row],
            valid=rows.valid[row],
            scored=masked,
            weight=masked * 2.0,
            row=row,
            draw=draw,
            prompt_length=rows.prompt_length[row],
            layout=context.layout,
        )

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        per_view = (scores.logp * views.weight.to(scores.logp.dtype)).sum(dim=1) / self.config.draws
        value = per_view.new_zeros(len(rows)).index_add(0, views.row, per_view)
        return Estimate(value=value, per="row", bound="lower", mask=torch.ones(len(rows), dtype=torch.bool))


class RatioSection(SectionConfig):
    entropy: bool = False
    kl: bool = False
    inner: int = 1
    fresh: bool = False


class ClippedRatio(Algorithm):
    """Sum over rows of a clipped ratio objective; optionally entropy and distance to the reference."""

    separable_by: ClassVar[Separable | None] = "row"

    inner_updates = property(lambda self: self.config.inner)
    fresh_views = property(lambda self: self.config.fresh)
    uses_reference = property(lambda self: self.config.kl)
    uses_entropy = property(lambda self: self.config.entropy)

    def advantages(self, rollout: Rollout, verdicts: Sequence[Verdict]) -> Advantages:
        score = torch.tensor([v.score for v in verdicts], dtype=torch.float64)
        usable = torch.ones(len(rollout), dtype=torch.bool)
        value = torch.zeros_like(score)
        for group in rollout.group.unique():
            members = rollout.group == group
            value[members] = score[members] - score[members].mean()
        return Advantages(value=value, usable=usable)

    def loss(self, inputs: LossInputs) -> LossOutput:
        log_ratio = inputs.live.value - inputs.old.value
        ratio = log_ratio.exp()
        advantage = inputs.advantages.value
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        loss = -gain.sum() / len(inputs.rows)
        if self.config.entropy:
            loss = loss - 0.1 * (inputs.scores.entropy * inputs.views.scored).sum() / len(inputs.rows)
        if self.config.kl:
            loss = loss + 0.5 * (inputs.live.value - inputs.reference.value).square().sum() / len(inputs.rows)
        ratios = Metric(float(ratio.detach().sum()), len(ratio))
        return LossOutput(loss=loss, metrics={"ratio": ratios})


class GroupContrast(ClippedRatio):
    """Terms between the rows of a group."""

    separable_by = "group"

    def loss(self, inputs: LossInputs) -> LossOutput:
        total = inputs.live.value.new_zeros(())
        for group in inputs.rows.group.unique():
            value = inputs.live.value[inputs.rows.group == group]
            total = total - torch.nn.functional.logsigmoid(value[0] - value[1:]).sum()
        return LossOutput(loss=total / len(inputs.rows))


class BatchContrast(ClippedRatio):
    """Terms between all rows: not separable."""

    separable_by = None

    def loss(self, inputs: LossInputs) -> LossOutput:
        return LossOutput(loss=-(inputs.advantages.value * inputs.live.value.log_softmax(0)).sum())


def toy_engine(
    budget: int = 10_000,
    *,
    adapter: ModelAdapter | None = None,
    reference: bool = False,
    peft: PeftSection | None = None,
    optim: OptimSection | None = None,
    **options: object,
) -> LocalEngine:
    """A local engine over a masked toy."""
    adapter = adapter or ToyMasked(8, 16, seed=1)
    if peft is not None:
        adapter.attach_peft(peft)
    inputs = EngineInputs(
        adapter=adapter,
        optim=optim or OptimSection(batch_size=6, lr=0.05, clip_norm=None),
        peft=peft,
        total_updates=10,
        keep_reference=reference,
        seed=7,
    )
    return LocalEngine(LocalSection(tokens_per_microbatch=budget, **options), inputs)


def toy_context(engine: LocalEngine, step: int = 0, purpose: str = "corruption") -> PlanContext:
    facts = engine.adapter.facts
    return PlanContext(facts=facts, address=Address(7, purpose, step), layout=facts.layout)


def toy_objective(engine: LocalEngine, algorithm: Algorithm, *, draws: int = 3, drift: float = 0.3) -> Objective:
    """An objective whose old policy is ``drift`` away from the live one at every row, within and beyond the clip."""
    rows = toy_rows()
    estimator = RandomMasks(MaskSection(draws=draws))
    views = estimator.plan(rows, toy_context(engine))
    live = estimator.reduce(views, engine.score(views, "live"), rows)
    shift = torch.tensor([0.0, 0.5, -1.0, 1.0, -0.2, 0.7], dtype=torch.float64)
    return Objective(
        estimator=estimator,
        algorithm=algorithm,
        rows=rows,
        views=views,
        progress=Progress(0, 10),
        advantages=Advantages(
            value=torch.tensor([1.0, -1.0, 0.5, 2.0, 0.0, -0.7], dtype=torch.float64),
            usable=torch.ones(6, dtype=torch.bool),
        ),
        old=replace(live, value=live.value + drift * shift),
        reference=replace(live, value=live.value + shift.flip(0)) if algorithm.uses_reference else None,
    )


def gradients(engine: LocalEngine) -> dict[str, Tensor]:
    """Gradients gathered so far."""
    return {name: p.grad.clone() for name, p in engine.adapter.module.named_parameters() if p.grad is not None}
