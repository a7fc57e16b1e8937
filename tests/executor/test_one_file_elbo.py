"""The one-file examples of the ELBO family and the product give the same numbers on the same draws."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.executor.test_one_file_examples import Setting, assert_same, example
from tests.made_inputs import plan_context, rows_of, scores_from_logits, split_rows

from dare_algos_elbo.bgpo import Bgpo
from dare_algos_elbo.config import BgpoSection, EbpoSection, EspoSection, SpgSection, VrpoSection
from dare_algos_elbo.dpo import Dpo
from dare_algos_elbo.ebpo import Ebpo
from dare_algos_elbo.espo import Espo
from dare_algos_elbo.estimators.block_stratified import BlockStratified
from dare_algos_elbo.estimators.config import (
    BlockStratifiedSection,
    CountStratifiedSection,
    EspoEstimatorSection,
    SpgEstimatorSection,
)
from dare_algos_elbo.estimators.count_stratified import CountStratified
from dare_algos_elbo.estimators.espo import Espo as EspoEstimator
from dare_algos_elbo.estimators.spg import Spg as SpgEstimator
from dare_algos_elbo.spg import Spg
from dare_core.interfaces import Objective
from dare_core.types import AttentionLayout, PairRows, Progress, Views


def numbers_for(s: Setting, draws: int) -> torch.Tensor:
    return torch.rand(len(s.tokens), draws, s.tokens.shape[1], generator=s.generator, dtype=torch.float64)


def test_bgpo_in_one_file_is_the_product():
    s = Setting("bgpo")
    draws = s.module.DRAWS
    count, numbers = s.module.draw_counts(len(s.tokens), s.generator), numbers_for(s, draws)
    live, old = (s.module.elbo_draws(policy, s.tokens, count, numbers) for policy in (s.live, s.old))
    shown = s.module.loss(live, old.detach(), s.module.advantages(s.rewards))
    estimator = CountStratified(CountStratifiedSection(draws=draws, per="view"))
    context = plan_context(s.module.MASK)
    views = estimator.views(s.rollout(), context, count.flatten(), numbers.flatten(0, 1))
    assert_same(s.product(Bgpo(BgpoSection()), estimator, views), s.shown(shown))


def test_espo_in_one_file_is_the_product():
    s = Setting("espo")
    count, numbers = s.module.draw_counts(len(s.tokens), s.generator), numbers_for(s, s.module.DRAWS)
    estimates = [s.module.elbo(policy, s.tokens, count, numbers) for policy in (s.live, s.old, s.base)]
    shown = s.module.loss(*(e.detach() if i else e for i, e in enumerate(estimates)), s.module.advantages(s.rewards))
    estimator = EspoEstimator(EspoEstimatorSection(draws=s.module.DRAWS))
    context = plan_context(s.module.MASK)
    views = estimator.views(s.rollout(), context, count.flatten(), numbers.flatten(0, 1))
    assert_same(s.product(Espo(EspoSection()), estimator, views), s.shown(shown))


def test_spg_in_one_file_is_the_product():
    s = Setting("spg")
    completion = s.module.completion_mask(s.tokens)
    block, count, numbers, noise = s.module.draw_masks(completion, s.generator)
    lower, upper = s.module.estimates(s.live, s.tokens, completion, block, count, numbers, noise)
    shown = s.module.loss(lower, upper, s.module.advantages(s.rewards), completion)
    estimator = SpgEstimator(SpgEstimatorSection(draws=s.module.DRAWS, block_length=s.module.BLOCK))
    parts = (block.flatten(), count.flatten(), numbers.flatten(0, 1), noise.flatten(0, 1))
    views = estimator.views(s.rollout(), plan_context(s.module.MASK), *parts)
    assert_same(s.product(Spg(SpgSection()), estimator, views), s.shown(shown))


class OfBlocks(torch.nn.Module):
    """A block toy as a function of views' inputs alone, for the rows that the views were made from."""

    def __init__(self, toy: torch.nn.Module, views: Views) -> None:
        super().__init__()
        self.toy, self._views = toy, views

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.toy(inputs, self._views.targets)


def test_ebpo_in_one_file_is_the_product():
    s = Setting("ebpo")
    draws = s.module.DRAWS
    first = torch.rand(len(s.tokens), generator=s.generator, dtype=torch.float64)
    numbers = numbers_for(s, draws)
    live, old = (s.module.block_elbo(policy, s.tokens, first, numbers) for policy in (s.live, s.old))
    shown = s.module.loss(live, old.detach(), s.module.advantages(s.rewards))
    wanted = s.shown(shown)
    estimator = BlockStratified(BlockStratifiedSection(draws=draws, targets="response"))
    context = plan_context(s.module.MASK, layout=AttentionLayout("block", s.module.BLOCK))
    views = estimator.views(s.rollout(), context, first.repeat_interleave(draws), numbers.flatten(0, 1))
    s.live, s.old, s.base = (OfBlocks(policy, views) for policy in (s.live, s.old, s.base))
    assert_same(s.product(Ebpo(EbpoSection(ratio="per-token")), estimator, views), wanted)


def test_vrpo_in_one_file_is_the_product():
    module, generator = example("vrpo"), torch.Generator().manual_seed(3)
    live, base = module.Toy(generator), module.Toy(generator)
    tokens = module.pairs(generator)
    count = module.draw_counts(len(tokens), generator)
    numbers = torch.rand(len(tokens), module.DRAWS, module.WIDTH, generator=generator, dtype=torch.float64)
    estimates = [module.elbo_draws(policy, tokens, count, numbers).mean(dim=1) for policy in (live, base)]
    shown = module.loss(estimates[0], estimates[1].detach())
    rows = split_rows(tokens, module.PROMPT)
    rows = rows_of(tokens, rows.prompt, rows.response, group=torch.arange(len(tokens)) // 2)
    fields = {name: getattr(rows, name) for name in type(rows).__dataclass_fields__}
    pairs = PairRows(**fields, preferred=torch.arange(len(tokens)) % 2 == 0)
    estimator = CountStratified(CountStratifiedSection(draws=module.DRAWS))
    views = estimator.views(pairs, plan_context(module.MASK), count.flatten(), numbers.flatten(0, 1))
    objective = Objective(
        estimator=estimator, algorithm=Dpo(VrpoSection()), rows=pairs, views=views, progress=Progress(0, 1)
    )
    reference = estimator.reduce(views, scores_from_logits(views, base(views.inputs)), pairs).detached()
    loss = replace(objective, reference=reference)(scores_from_logits(views, live(views.inputs))).loss
    parameters = list(live.parameters())
    assert_same([loss, *torch.autograd.grad(loss, parameters)], [shown, *torch.autograd.grad(shown, parameters)])


@pytest.mark.parametrize("kind", ["bgpo", "espo", "spg", "ebpo", "vrpo"])
def test_the_example_learns(kind):
    history = example(kind).train()
    assert sum(history[-5:]) > sum(history[:5]) + 1.0
