"""Golden case of the two-pass update: its gradient through the product's engine is the full graph's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dare_core.api import SectionConfig
from dare_core.engine.config import LocalSection
from dare_core.engine.local import LocalEngine
from dare_core.interfaces import Algorithm, EngineInputs, LikelihoodEstimator, Objective, PlanContext
from dare_core.interfaces.model import ModelAdapter
from dare_core.loops.update import replay
from dare_core.objectives.clips import clipped_surrogate
from dare_core.spec.sections import OptimSection
from dare_core.testing.goldens import GoldenCase
from dare_core.types import (
    Advantages,
    AttentionLayout,
    Estimate,
    LossInputs,
    LossOutput,
    Progress,
    Rows,
    Scores,
    Views,
)
from tests.goldens.runner import golden


class RecordedAdapter(ModelAdapter):
    """Token scores -softplus(theta), theta [B,N,L] by row and draw."""

    wrap_units = ()
    load = attach_peft = base_only = save = save_adapter = describe = logits = None

    def __init__(self, theta: Tensor) -> None:
        self.module = nn.Module()
        self.module.theta = nn.Parameter(theta.clone())

    def token_logp(self, views: Views, *, entropy: bool = False) -> Scores:
        return Scores(logp=-nn.functional.softplus(self.module.theta[views.row, views.draw]) * views.scored)


RecordedAdapter.__abstractmethods__ = frozenset()


class DrawMean(LikelihoodEstimator):
    """Sum over tokens, mean over draws."""

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        raise NotImplementedError

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        draws = len(views) // len(rows)
        value = scores.logp.new_zeros(len(rows)).index_add(0, views.row, scores.logp.sum(dim=1) / draws)
        return Estimate(value=value, per="row", bound="lower", mask=torch.ones(len(rows), dtype=torch.bool))


class SequenceRatio(Algorithm):
    """Clipped sequence ratio, mean over usable rows."""

    clip = 0.2

    def loss(self, inputs: LossInputs) -> LossOutput:
        ratio = (inputs.live.value - inputs.old.value).exp()
        loss = clipped_surrogate(ratio, inputs.advantages.value, self.clip, self.clip, None).loss
        usable = inputs.advantages.usable
        return LossOutput(loss=(loss * usable).sum() / usable.sum())


@golden("algos-elbo", "gradient", "Memory-constant exact replay")
def memory_constant_replay(case: GoldenCase) -> None:
    theta, mask = case.tensors["in.theta"], case.tensors["in.response_mask"].bool()
    count, draws, width = theta.shape
    adapter = RecordedAdapter(theta)
    views, rows = _views(mask, draws), _rows(mask)
    algorithm = SequenceRatio(SectionConfig())
    algorithm.clip = case.settings["clip"]
    old = case.tensors["in.old"]
    objective = Objective(
        estimator=DrawMean(SectionConfig()),
        algorithm=algorithm,
        rows=rows,
        views=views,
        progress=Progress(0, 1),
        advantages=Advantages(value=case.tensors["in.advantages"], usable=case.tensors["in.valid"].bool()),
        old=Estimate(value=old, per="row", bound="lower", mask=torch.ones(count, dtype=torch.bool)),
    )
    inputs = EngineInputs(
        adapter=adapter, optim=OptimSection(batch_size=1), peft=None, total_updates=1, keep_reference=False, seed=0
    )
    engine = LocalEngine(LocalSection(tokens_per_microbatch=width), inputs)
    scores = engine.score(views, "live")
    case.close("out.loss", replay(engine, objective, scores).loss.detach())
    case.close("out.grad_theta", adapter.module.theta.grad)
    live = objective.estimator.reduce(views, scores, rows).value.requires_grad_()
    rated = LossInputs(
        rows=rows,
        views=views,
        scores=scores,
        live=Estimate(value=live, per="row", bound="lower", mask=torch.ones(count, dtype=torch.bool)),
        old=objective.old,
        reference=None,
        advantages=objective.advantages,
        progress=objective.progress,
    )
    algorithm.loss(rated).loss.backward()
    case.close("out.proxy_grad", live.grad)


def _rows(mask: Tensor) -> Rows:
    count = len(mask)
    return Rows(
        tokens=torch.zeros(mask.shape, dtype=torch.int64),
        prompt=torch.zeros_like(mask),
        response=mask,
        completion=mask,
        sample_id=torch.arange(count),
        group=torch.arange(count),
        example_id=tuple(map(str, range(count))),
    )


def _views(mask: Tensor, draws: int) -> Views:
    row = torch.arange(len(mask)).repeat_interleave(draws)
    tokens = torch.zeros((len(row), mask.shape[1]), dtype=torch.int64)
    return Views(
        inputs=tokens,
        targets=tokens,
        valid=mask[row],
        scored=mask[row],
        weight=mask[row].to(torch.float64),
        row=row,
        draw=torch.arange(draws).repeat(len(mask)),
        prompt_length=torch.zeros(len(row), dtype=torch.int64),
        layout=AttentionLayout(),
    )
