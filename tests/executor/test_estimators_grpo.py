"""One-step, coupled and trajectory estimates on toys, against exact enumeration and the decoder's own record."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.executor.toy_training import toy_rows
from tests.made_inputs import rollout_of

from dare_algos_grpo.config import (
    CoupledSection,
    LeftToRightSection,
    OneStepSection,
    RandomMaskSection,
    TrajectorySection,
)
from dare_algos_grpo.estimators.coupled import Coupled
from dare_algos_grpo.estimators.left_to_right import LeftToRight
from dare_algos_grpo.estimators.one_step import OneStep
from dare_algos_grpo.estimators.random_mask import RandomMask
from dare_algos_grpo.estimators.replay import ranks
from dare_algos_grpo.estimators.trajectory import Trajectory
from dare_core.diffusion.seeds import uniforms
from dare_core.errors import UserError
from dare_core.interfaces import PlanContext, RolloutRequest
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.testing.enumeration import order_logps, subset_table
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Address, DecodingSettings, EosRule, Prompt, Rollout, Rows


def context_of(adapter, *, purpose: str = "corruption", layout=None) -> PlanContext:
    return PlanContext(facts=adapter.facts, address=Address(7, purpose, 2), layout=layout or adapter.facts.layout)


def taken(rows: Rows, index: torch.Tensor, extra: int = 0) -> Rows:
    """Rows at ``index`` with ``extra`` columns of padding on the right."""
    columns = {
        name: torch.nn.functional.pad(getattr(rows, name)[index], (0, extra))
        for name in ("tokens", "prompt", "response", "completion")
    }
    ids = {name: getattr(rows, name)[index] for name in ("sample_id", "group")}
    return Rows(**columns, **ids, example_id=tuple(rows.example_id[i] for i in index.tolist()))


def sampled(adapter, *, eos_rule: EosRule = EosRule.FILL, steps: int = 2, block: int = 4) -> Rollout:
    settings = DecodingSettings(
        new_tokens=8, block_length=block, steps_per_block=steps, temperature=1.0, eos_rule=eos_rule
    )
    request = RolloutRequest(
        prompts=[Prompt(id="p", index=0, text="ab"), Prompt(id="q", index=1, text="bcd")],
        samples=3,
        settings=settings,
        address=Address(3, "rollout", 0),
    )
    return NativeBackend(NativeSection(new_tokens=8), adapter).generate(request)


@pytest.mark.parametrize(
    "estimator", [OneStep(OneStepSection()), Coupled(CoupledSection())], ids=["one-step", "coupled"]
)
def test_row_order_and_padding_change_no_estimate(estimator):
    adapter, rows = ToyMasked(8, 16, seed=1), toy_rows()
    order = torch.tensor([3, 0, 5, 1, 4, 2])

    def estimate(given: Rows) -> torch.Tensor:
        views = estimator.plan(given, context_of(adapter))
        return estimator.reduce(views, adapter.token_logp(views), given).value

    straight = estimate(rows)
    torch.testing.assert_close(estimate(taken(rows, order, 3))[:, :-3], straight[order])


def test_one_step_hides_the_whole_response_and_part_of_the_prompt():
    adapter, rows = ToyMasked(8, 16), toy_rows(40)
    views = OneStep(OneStepSection(prompt_mask=0.3)).plan(rows, context_of(adapter))
    hidden = views.inputs == adapter.facts.mask_id
    assert torch.equal(views.scored, rows.response)
    assert (hidden & rows.response).sum() == rows.response.sum()
    assert not (hidden & ~rows.valid).any()
    assert 0.15 < (hidden & rows.prompt).sum() / rows.prompt.sum() < 0.45


def test_one_step_without_prompt_masking_leaves_the_prompt_intact():
    adapter, rows = ToyMasked(8, 16), toy_rows()
    views = OneStep(OneStepSection(prompt_mask=0.0)).plan(rows, context_of(adapter))
    assert torch.equal(views.inputs[rows.prompt], rows.tokens[rows.prompt])


@pytest.mark.parametrize(
    "estimator", [OneStep(OneStepSection()), Coupled(CoupledSection())], ids=["one-step", "coupled"]
)
def test_an_address_fixes_the_views_and_another_purpose_changes_them(estimator):
    adapter, rows = ToyMasked(8, 16), toy_rows(20)
    first, again, other = (
        estimator.plan(rows, context_of(adapter, purpose=purpose)) for purpose in ("inner-0", "inner-0", "inner-1")
    )
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)


@pytest.mark.parametrize("ratio_per", ["batch", "row"])
def test_coupled_pair_scores_each_response_token_once(ratio_per):
    adapter, rows = ToyMasked(8, 16), toy_rows()
    views = Coupled(CoupledSection(ratio_per=ratio_per)).plan(rows, context_of(adapter))
    full, first, second = (views.scored[views.draw == draw] for draw in range(3))
    assert torch.equal(full, rows.response)
    assert torch.equal(first ^ second, rows.response)
    assert not (first & second).any()
    assert torch.equal(views.scored, (views.inputs == adapter.facts.mask_id))
    ratios = 1 / views.weight[views.draw == 1].amax(dim=1)
    assert ((ratios > 0.2) & (ratios < 0.8) | ~first.any(dim=1)).all()
    assert (len(ratios[first.any(dim=1)].unique()) == 1) == (ratio_per == "batch")


def test_coupled_without_context_is_one_and_a_half_times_the_log_probability():
    adapter, rows = ToyMasked(8, 16, strength=0.0), toy_rows()
    estimator = Coupled(CoupledSection(ratio_low=0.5, ratio_high=0.5))
    views = estimator.plan(rows, context_of(adapter))
    scores = adapter.token_logp(views)
    alone = scores.logp[views.draw == 0]
    torch.testing.assert_close(estimator.reduce(views, scores, rows).value, 1.5 * alone)


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.7])
@pytest.mark.parametrize(
    "adapter", [ToyMasked(6, 8, seed=2), ToyBlock(6, 8, seed=2, block_length=2)], ids=["masked", "block"]
)
def test_coupled_expectation_by_enumeration(adapter, ratio):
    rows = taken(toy_rows(6, vocab=6), torch.tensor([0]))
    columns = rows.response[0].nonzero()[:, 0]
    count = len(columns)
    estimator, table = Coupled(CoupledSection()), subset_table(adapter, rows)
    expected = table.logp[-1].clone()
    for q in (ratio, 1 - ratio):
        size = table.masked.sum(dim=1).to(torch.float64)
        chance = q**size * (1 - q) ** (count - size)
        expected += (chance[:, None] * table.logp).sum(dim=0) / q
    found = torch.zeros(count, dtype=torch.float64)
    for pattern in range(1 << count):
        first = (torch.tensor(pattern) >> torch.arange(count)) & 1 == 1
        uniform = torch.ones(rows.tokens.shape, dtype=torch.float64)
        uniform[0, columns[first]] = 0.0
        views = estimator.views(rows, context_of(adapter), uniform, torch.tensor([ratio], dtype=torch.float64))
        value = estimator.reduce(views, adapter.token_logp(views), rows).value[0, columns]
        found += ratio ** int(first.sum()) * (1 - ratio) ** int((~first).sum()) * value
    torch.testing.assert_close(found, expected / 2, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("complement", [False, True])
@pytest.mark.parametrize(
    "adapter", [ToyMasked(6, 8, seed=2), ToyBlock(6, 8, seed=2, block_length=2)], ids=["masked", "block"]
)
def test_random_mask_expectation_by_enumeration(adapter, complement):
    rows = taken(toy_rows(6, vocab=6), torch.tensor([0]))
    columns = rows.response[0].nonzero()[:, 0]
    count, ratio = len(columns), 0.3
    estimator, table = RandomMask(RandomMaskSection(draws=1, complement=complement)), subset_table(adapter, rows)
    expected = torch.zeros(count, dtype=torch.float64)
    for q in (ratio, 1 - ratio) if complement else (ratio,):
        size = table.masked.sum(dim=1).to(torch.float64)
        expected += (q**size * (1 - q) ** (count - size))[:, None].mul(table.logp).sum(dim=0)
    found = torch.zeros(count, dtype=torch.float64)
    for pattern in range(1 << count):
        first = (torch.tensor(pattern) >> torch.arange(count)) & 1 == 1
        uniform = torch.ones(rows.tokens.shape, dtype=torch.float64)
        uniform[0, columns[first]] = 0.0
        views = estimator.views(rows, context_of(adapter), uniform, torch.tensor([ratio], dtype=torch.float64))
        value = estimator.reduce(views, adapter.token_logp(views), rows).value[:, columns].sum(dim=0)
        found += ratio ** int(first.sum()) * (1 - ratio) ** int((~first).sum()) * value
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_random_masks_stay_within_their_shares_and_complements_score_every_token_once_per_draw():
    adapter, rows = ToyMasked(8, 300), toy_rows(2)
    wide = taken(rows, torch.tensor([0]), 200)
    wide = replace(wide, response=torch.arange(210)[None] >= 2, completion=torch.arange(210)[None] >= 2)
    wide = replace(wide, tokens=torch.zeros_like(wide.tokens), prompt=~wide.response)
    for complement in (False, True):
        views = RandomMask(RandomMaskSection(complement=complement)).plan(wide, context_of(adapter))
        assert len(views) == 35 * (1 + complement)
        share = views.scored.sum(dim=1) / 208
        assert ((share > 0.0) & (share < 1.0)).all()
        assert share.max() - share.min() > 0.5
        assert torch.equal(views.scored, views.inputs == adapter.facts.mask_id)
        if complement:
            assert torch.equal(views.scored[::2] ^ views.scored[1::2], wide.response.expand(35, -1))


@pytest.mark.parametrize("complement", [False, True])
def test_random_masks_do_not_depend_on_row_order_or_padding(complement):
    adapter, rows = ToyMasked(8, 16, seed=1), toy_rows()
    estimator, order = RandomMask(RandomMaskSection(draws=3, complement=complement)), torch.tensor([3, 0, 5, 1, 4, 2])

    def per_row(given: Rows) -> torch.Tensor:
        views = estimator.plan(given, context_of(adapter))
        value = estimator.reduce(views, adapter.token_logp(views), given).value
        return torch.zeros(given.tokens.shape, dtype=torch.float64).index_add(0, views.row, value)

    torch.testing.assert_close(per_row(taken(rows, order, 3))[:, :-3], per_row(rows)[order])


@pytest.mark.parametrize("eos_rule", [EosRule.FILL, EosRule.STOP])
@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("adapter", [ToyMasked(6, 12, seed=4), ToyBlock(6, 12, seed=4)], ids=["masked", "block"])
def test_replay_gives_the_decoders_own_probabilities(adapter, steps, eos_rule):
    rollout = sampled(adapter, steps=steps, eos_rule=eos_rule)
    estimator = Trajectory(TrajectorySection())
    views = estimator.plan(rollout, context_of(adapter))
    estimate = estimator.reduce(views, adapter.token_logp(views), rollout)
    per_token = torch.zeros(rollout.tokens.shape, dtype=torch.float64).index_add(0, views.row, estimate.value)
    torch.testing.assert_close(per_token, rollout.logp, rtol=1e-9, atol=1e-9)


def test_trajectory_views_partition_the_committed_tokens():
    adapter = ToyMasked(6, 12, seed=4)
    rollout = sampled(adapter, eos_rule=EosRule.STOP)
    views = Trajectory(TrajectorySection()).plan(rollout, context_of(adapter))
    times_scored = torch.zeros(rollout.tokens.shape, dtype=torch.int64).index_add(0, views.row, views.scored.long())
    assert torch.equal(times_scored, (rollout.trace.commit_step >= 0).long())
    for row in range(len(rollout)):
        mine = (views.row == row).nonzero()[:, 0]
        hidden = views.inputs[mine] == adapter.facts.mask_id
        assert torch.equal(hidden[0], rollout.response[row])
        assert views.draw[mine].tolist() == sorted(views.draw[mine].tolist())
        for now, later, scored in zip(hidden[:-1], hidden[1:], views.scored[mine][:-1], strict=True):
            assert torch.equal(now & ~later, scored)
        never = rollout.response[row] & (rollout.trace.commit_step[row] < 0)
        assert torch.equal(hidden[-1] & ~views.scored[mine][-1], never)


def test_merging_all_steps_is_the_one_step_estimate_without_prompt_masking():
    adapter = ToyMasked(6, 12, seed=4)
    rollout, context = sampled(adapter), context_of(adapter)
    merged = Trajectory(TrajectorySection(merge_steps=99))
    views = merged.plan(rollout, context)
    plain = OneStep(OneStepSection(prompt_mask=0.0)).plan(rollout, context)
    assert torch.equal(views.inputs, plain.inputs)
    assert torch.equal(views.scored, plain.scored)
    assert merged.reduce(views, adapter.token_logp(views), rollout).bound == "surrogate"


def test_merging_two_steps_halves_the_views():
    adapter = ToyMasked(6, 12, seed=4)
    rollout, context = sampled(adapter, steps=4), context_of(adapter)
    views = Trajectory(TrajectorySection(merge_steps=2)).plan(rollout, context)
    assert 2 * len(views) == len(Trajectory(TrajectorySection()).plan(rollout, context))
    assert (views.scored.sum(dim=1) == 2).all()


def test_a_block_view_replays_the_same_step_of_every_block():
    adapter = ToyBlock(6, 12, seed=4)
    rollout, context = sampled(adapter, steps=4), context_of(adapter)
    views = Trajectory(TrajectorySection()).plan(rollout, context)
    # Prompts of 2 and 3 tokens share the first block of 4 with the response, so the next block is the longest.
    assert torch.bincount(views.row).tolist() == [4] * len(rollout)
    assert int(rollout.trace.commit_step.max()) + 1 == 8


def test_steps_are_counted_by_their_order_within_row_and_block():
    step = torch.tensor([[-1, 7, 3, 3, 5, 5], [4, -1, 9, 2, 2, 0]])
    blocks = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]])
    assert ranks(step, blocks).tolist() == [[-1, 1, 0, 0, 0, 0], [0, -1, 1, 1, 1, 0]]
    assert ranks(step, blocks * 0).tolist() == [[-1, 2, 0, 0, 1, 1], [2, -1, 3, 1, 1, 0]]


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_padding_tokens_after_the_first_ones_are_not_scored(kept):
    adapter = ToyMasked(6, 12, seed=4)
    rollout = sampled(adapter)
    pad = (rollout.tokens == adapter.facts.pad_id) & rollout.response
    assert int(pad.sum(dim=1).max()) > 1
    views = Trajectory(TrajectorySection(pad_targets=kept)).plan(rollout, context_of(adapter))
    scored = torch.zeros(rollout.tokens.shape, dtype=torch.int64).index_add(0, views.row, views.scored.long())
    assert (scored * pad).sum(dim=1).tolist() == pad.sum(dim=1).clamp(max=kept).tolist()
    assert torch.equal(scored.bool() & ~pad, rollout.response & ~pad)
    assert views.scored.any(dim=1).all()


@pytest.mark.parametrize("temperature", [None, 1.0])
@pytest.mark.parametrize("adapter", [ToyMasked(6, 12, seed=4), ToyBlock(6, 12, seed=4)], ids=["masked", "block"])
def test_left_to_right_is_the_exact_log_probability(adapter, temperature):
    rows = taken(toy_rows(6, vocab=6), torch.arange(3))
    context = replace(context_of(adapter), temperature=0.7)
    estimator = LeftToRight(LeftToRightSection(temperature=temperature))
    views = estimator.plan(rows, context)
    estimate = estimator.reduce(views, adapter.token_logp(views), rows)
    assert estimate.bound == "exact"
    for row in range(len(rows)):
        orders = order_logps(adapter, rows, row, temperature=temperature or 0.7)
        straight = next(logp for order, logp in orders if list(order) == sorted(order))
        torch.testing.assert_close(estimate.value[row].sum(), straight)


def test_left_to_right_gives_the_probability_of_decoding_token_by_token():
    adapter = ToyMasked(6, 12, seed=4)
    rollout = sampled(adapter, steps=1, block=1)
    estimator = LeftToRight(LeftToRightSection())
    views = estimator.plan(rollout, context_of(adapter))
    assert len(views) == int(rollout.response.sum())
    value = estimator.reduce(views, adapter.token_logp(views), rollout).value
    torch.testing.assert_close(value, rollout.logp, rtol=1e-9, atol=1e-9)


def test_one_token_left_to_right_is_the_one_step_estimate_without_prompt_masking():
    adapter, rows = ToyMasked(8, 16, seed=1), toy_rows()
    first = rows.response & (rows.response.cumsum(dim=1) == 1)
    rows = replace(rows, response=first, completion=first)
    exact, plain = LeftToRight(LeftToRightSection()), OneStep(OneStepSection(prompt_mask=0.0))
    left, right = (estimator.plan(rows, context_of(adapter)) for estimator in (exact, plain))
    assert torch.equal(left.inputs, right.inputs)
    torch.testing.assert_close(
        exact.reduce(left, adapter.token_logp(left), rows).value,
        plain.reduce(right, adapter.token_logp(right), rows).value,
    )


def test_rows_without_commit_steps_are_refused():
    adapter = ToyMasked(8, 16)
    with pytest.raises(UserError, match="commit steps"):
        Trajectory(TrajectorySection()).plan(toy_rows(), context_of(adapter))


def test_a_trace_that_does_not_replay_is_refused():
    adapter, rows = ToyMasked(8, 16), toy_rows()
    rollout = rollout_of(rows, torch.where(rows.response, 0, -1), replayable=False)
    with pytest.raises(UserError, match="cannot be replayed"):
        Trajectory(TrajectorySection()).plan(rollout, context_of(adapter))


def test_clean_text_that_holds_the_mask_token_is_refused_by_name():
    adapter, rows = ToyMasked(8, 16), toy_rows()
    tokens = rows.tokens.clone()
    tokens[3, 2] = adapter.facts.mask_id
    with pytest.raises(UserError, match=r"row-1.*mask token 7"):
        OneStep(OneStepSection()).plan(replace(rows, tokens=tokens), context_of(adapter))


def test_draws_are_those_of_the_addressed_generator():
    adapter, rows = ToyMasked(8, 16), toy_rows()
    estimator, context = OneStep(OneStepSection()), context_of(adapter)
    uniform = uniforms(context.address, rows.sample_id, 0, rows.tokens.shape[1])
    assert torch.equal(estimator.plan(rows, context).inputs, estimator.views(rows, context, uniform).inputs)
