"""ELBO estimators: exact expectations and marginals by enumeration, and what holds for every plan."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.draw_enumeration import bernoulli_mean, context_of, values
from tests.executor.elbo_estimators import BLOCK, MASKED, bernoulli, blocks, counts, espo, one_row, spg, taken
from tests.executor.toy_training import toy_rows
from tests.made_inputs import rows_of
from torch import Tensor

from dare_algos_elbo.estimators.draws import Lines
from dare_core.diffusion.counts import systematic_counts, uniform_counts
from dare_core.errors import UserError
from dare_core.testing.enumeration import exact_elbo
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Rows, Scores

#: every estimator, with options that need more than the defaults
PLANS = {
    "bernoulli": bernoulli(draws=2),
    "bernoulli-complementary": bernoulli(complementary=True),
    "bernoulli-redrawn": bernoulli(redraws=2, time_low=0.01),
    "bernoulli-cart": bernoulli(weight="cart", end_run_as_one=True),
    "bernoulli-cropped": bernoulli(weight="remaining", crop="batch"),
    "count-stratified": counts(draws=3),
    "count-stratified-sets": counts(draws=4, set_size=2, rounding="published"),
    "espo": espo(),
    "espo-single": espo(draws=3, coupled=False, systematic="none"),
    "block-stratified": blocks(draws=3),
    "spg": spg(block_length=2),
    "spg-random": spg(masking="random", draws=3),
    "spg-all": spg(masking="all", draws=1),
    "spg-block-all": spg(masking="block-all", block_length=2),
}


@pytest.mark.parametrize("adapter", [MASKED, BLOCK], ids=["masked", "block"])
@pytest.mark.parametrize(
    "estimator",
    [
        counts(),
        counts(draws=2),
        counts(draws=2, set_size=1),
        espo(draws=1),
        espo(draws=1, coupled=False),
        espo(draws=2, systematic="draws", coupled=False),
        espo(draws=2, systematic="draws"),
        blocks(draws=1),
        blocks(draws=2),
    ],
    ids=["count", "count-2", "count-sets", "coupled", "espo", "espo-2", "coupled-2", "block", "block-2"],
)
def test_expectation_over_every_draw_is_the_elbo(estimator, adapter):
    rows = one_row(adapter)
    found = values(estimator, adapter, rows)
    torch.testing.assert_close(found.mean(), exact_elbo(adapter, rows).detach(), rtol=1e-12, atol=0)
    assert estimator.bound == "lower"
    assert found.std() > 0.1


@pytest.mark.parametrize("adapter", [MASKED, BLOCK], ids=["masked", "block"])
def test_a_complementary_bernoulli_pair_has_the_elbo_as_its_mean(adapter):
    rows = one_row(adapter)
    found = bernoulli_mean(adapter, rows, bernoulli(time_low=1e-14, complementary=True), 3)
    torch.testing.assert_close(found, exact_elbo(adapter, rows), rtol=1e-12, atol=0)


def test_more_counts_and_pairs_lower_the_variance():
    rows = one_row(MASKED)
    one, three = (values(counts(draws=draws), MASKED, rows).var(correction=0) for draws in (1, 3))
    assert three < one / 3
    coupled, single = (values(espo(draws=1, coupled=pair), MASKED, rows).var() for pair in (True, False))
    assert coupled < single


def test_stratified_blocks_vary_less_than_whole_responses():
    rows = one_row(BLOCK)
    assert values(blocks(draws=1), BLOCK, rows).var() < values(counts(), BLOCK, rows).var()


@pytest.mark.parametrize("scale", [0.0, 0.05])
def test_differences_between_near_policies_vary_less_on_shared_draws(scale):
    rows, other = one_row(MASKED), ToyMasked(5, 8, seed=3)
    with torch.no_grad():
        other.module.table += scale * ToyMasked(5, 8, seed=9).module.table
    here, there = values(counts(), MASKED, rows), values(counts(), other, rows)
    shared, independent = (here - there).var(), here.var() + there.var()
    assert shared < independent / 5
    assert (shared == 0) == (scale == 0)


@pytest.mark.parametrize("low", [0, 1])
@pytest.mark.parametrize("high", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("of", [1, 2, 3, 4])
def test_every_count_is_equally_likely_at_every_step(low, high, of):
    starts = torch.arange(low, high + 1)
    for index in range(of):
        found = systematic_counts(starts, torch.full_like(starts, index), of, low, torch.full_like(starts, high))
        assert found.sort().values.tolist() == starts.tolist()


def test_published_rounding_is_uneven_where_steps_end_in_a_half():
    starts = torch.arange(1, 4)
    found = systematic_counts(starts, torch.ones_like(starts), 2, 1, torch.full_like(starts, 3), "published")
    assert 3 not in found.tolist()
    even = systematic_counts(starts, torch.ones_like(starts), 3, 1, torch.full_like(starts, 3), "published")
    assert even.sort().values.tolist() == [1, 2, 3]
    assert counts(rounding="published").bound == "surrogate"


def test_systematic_rows_have_uniform_counts_also_where_lengths_differ():
    lengths, estimator = torch.tensor([2, 3, 6]), espo(draws=1, coupled=False)
    rows = rows_of(torch.zeros(3, 6, dtype=torch.int64), torch.zeros(3, 6) > 0, torch.arange(6) < lengths[:, None])
    lines = Lines.of(rows, 1, "row")
    grid = (torch.arange(84, dtype=torch.float64) + 0.5) / 84
    seen = torch.stack([estimator.counts(lines, uniform_counts(u.expand(3), 0, lengths), lengths) for u in grid])
    for row, length in enumerate(lengths.tolist()):
        assert seen[:, row].bincount(minlength=length + 1).tolist() == [84 // (length + 1)] * (length + 1)


def test_systematic_rows_are_ordered_by_sample_id():
    rows = toy_rows(6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for estimator in (espo(), espo(shared_by="group")):
        straight = estimator.plan(rows, context_of(ToyMasked(8, 16)))
        other = estimator.plan(taken(rows, order), context_of(ToyMasked(8, 16)))
        index = torch.cat([(straight.row == row).nonzero()[:, 0] for row in order])
        assert torch.equal(other.inputs, straight.inputs[index])


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_hidden_tokens_of_each_block_are_uniform_in_number(draws):
    adapter = ToyBlock(6, 12, seed=2, block_length=3)
    rows = rows_of(torch.arange(8)[None] % 4, (torch.arange(8) < 2)[None], (torch.arange(8) >= 2)[None])
    estimator, sizes, cells = blocks(draws=draws), (1, 3, 2), 3 * draws
    grid = 6 * cells
    numbers = torch.arange(8, dtype=torch.float64).expand(draws, 8) / 99
    seen = torch.zeros(grid, draws, 3, dtype=torch.int64)
    for cell in range(grid):
        first = torch.full((draws,), (cell + 0.5) / grid, dtype=torch.float64)
        hidden = estimator.views(rows, context_of(adapter), first, numbers).scored[:, 2:].long()
        seen[cell] = torch.stack([part.sum(dim=1) for part in hidden.split(sizes, dim=1)], dim=1)
    for block, size in enumerate(sizes):
        for draw in range(draws):
            assert seen[:, draw, block].bincount(minlength=size + 1).tolist() == [0] + [grid // size] * size


def test_draws_of_one_set_cover_the_range_of_counts():
    rows = one_row(MASKED, 6)
    views = counts(draws=6).plan(rows, context_of(ToyMasked(5, 8)))
    assert views.scored.sum(dim=1).sort().values.tolist() == [1, 2, 3, 4, 5, 6]
    torch.testing.assert_close(views.weight.amax(dim=1), 6 / views.scored.sum(dim=1).double())


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("adapter", [ToyMasked(8, 16, seed=1), ToyBlock(8, 16, seed=1, block_length=4)])
def test_row_order_and_padding_change_no_estimate(adapter, name):
    estimator, rows = PLANS[name], toy_rows()
    order = torch.tensor([3, 0, 5, 1, 4, 2])

    def estimate(given: Rows) -> Tensor:
        views = estimator.plan(given, context_of(adapter))
        return estimator.reduce(views, adapter.token_logp(views), given).value

    torch.testing.assert_close(estimate(taken(rows, order, 3)), estimate(rows)[order])


@st.composite
def made_rows(draw) -> Rows:
    """Rows with tails behind the end token, empty answers included."""
    count, width = draw(st.integers(1, 4)), draw(st.integers(3, 12))
    seed = draw(st.integers(0, 10_000))
    generator = torch.Generator().manual_seed(seed)
    prompt_length = torch.randint(0, width, (count, 1), generator=generator)
    length = torch.randint(0, width, (count, 1), generator=generator)
    column = torch.arange(width).expand(count, width)
    prompt = column < prompt_length
    response = ~prompt & (column < prompt_length + length)
    cut = torch.randint(0, width + 1, (count, 1), generator=generator)
    rows = rows_of(
        torch.randint(0, 6, (count, width), generator=generator),
        prompt,
        response,
        completion=response & (column < prompt_length + cut),
        group=torch.arange(count) // 2,
    )
    return replace(rows, sample_id=torch.randperm(99, generator=generator)[:count])


@pytest.mark.parametrize("name", PLANS)
@settings(max_examples=25, deadline=None)
@given(rows=made_rows())
def test_plans_hide_targets_only_and_weigh_what_they_score(name, rows):
    adapter, estimator = ToyMasked(8, 16), PLANS[name]
    views = estimator.plan(rows, context_of(adapter))
    hidden = views.inputs == adapter.facts.mask_id
    assert len(views) % len(rows) == 0
    assert torch.equal(views.row.sort().values, views.row)
    assert not (views.scored & ~rows.response[views.row]).any()
    assert torch.equal(views.inputs[~hidden], views.targets[~hidden])
    assert not (views.scored & ~hidden).any()
    if not name.startswith("spg"):
        assert torch.equal(hidden, views.scored)
    assert torch.isfinite(views.weight).all()
    assert (views.weight[~views.scored] == 0).all()
    assert (views.weight >= 0).all()
    scores = Scores(logp=torch.full(views.inputs.shape, -1.5, dtype=torch.float64))
    estimate = estimator.reduce(views, scores, rows)
    assert torch.isfinite(estimate.value).all()
    assert (estimate.value[~estimate.mask] == 0).all()


@pytest.mark.parametrize("name", PLANS)
def test_what_is_not_scored_changes_neither_estimate_nor_gradient(name):
    adapter, rows, estimator = ToyMasked(8, 16, seed=1), toy_rows(), PLANS[name]
    views = estimator.plan(rows, context_of(adapter))
    logp = adapter.token_logp(views).logp.detach()
    results = []
    for filler in (0.0, float("nan"), float("-inf")):
        leaf = torch.where(views.scored & (views.weight != 0), logp, filler).requires_grad_()
        estimate = estimator.reduce(views, Scores(logp=leaf), rows)
        total = estimate.value.sum() + (0 if estimate.upper is None else estimate.upper.sum())
        results.append((estimate.value.detach(), torch.autograd.grad(total, leaf)[0]))
    for value, gradient in results[1:]:
        torch.testing.assert_close(value, results[0][0], rtol=0, atol=0)
        torch.testing.assert_close(gradient, results[0][1], rtol=0, atol=0)


def test_a_draw_that_hides_nothing_is_an_exact_zero_with_a_graph():
    rows = one_row(MASKED)
    estimator = espo(draws=1, coupled=False)
    views = estimator.views(rows, context_of(MASKED), torch.tensor([0]), torch.rand(1, 5))
    leaf = torch.full((1, 5), float("nan"), requires_grad=True)
    value = estimator.reduce(views, Scores(logp=leaf), rows).value
    value.sum().backward()
    assert value.item() == 0.0
    assert torch.equal(leaf.grad, torch.zeros(1, 5))


@pytest.mark.parametrize("name", [n for n in PLANS if "cropped" not in n])
def test_rows_of_a_group_can_share_their_draws(name):
    rows = toy_rows(2)
    # The same prompt length and, up to the shorter one, the same columns: both sides of a pair.
    twin = replace(taken(rows, torch.tensor([0, 0])), sample_id=torch.tensor([8, 9]), group=torch.tensor([3, 3]))
    estimator = PLANS[name]
    adapter = ToyMasked(8, 16)
    for shared in ("row", "group"):
        chosen = type(estimator)(estimator.config.model_copy(update={"shared_by": shared, "systematic": "draws"}))
        views = chosen.plan(twin, context_of(adapter))
        half = len(views) // 2
        assert torch.equal(views.inputs[:half], views.inputs[half:]) == (shared == "group")


def test_a_target_outside_the_vocabulary_names_its_row():
    rows = toy_rows()
    tokens = rows.tokens.clone()
    tokens[4, 3] = 99
    with pytest.raises(UserError, match=r"row-2.*outside the vocabulary 0\.\.7"):
        counts().plan(replace(rows, tokens=tokens), context_of(ToyMasked(8, 16)))


def test_completion_targets_leave_the_tail_out_of_the_row():
    tokens = torch.tensor([[0, 1, 2, 6, 6, 6]])
    column = torch.arange(6)[None]
    rows = rows_of(tokens, column < 2, column >= 2, completion=(column >= 2) & (column < 4))
    views = counts(draws=2, targets="completion").plan(rows, context_of(ToyMasked(8, 16)))
    assert not views.valid[:, 4:].any()
    assert views.scored[:, 2:4].any(dim=1).all()


def test_draws_below_one_and_uneven_sets_are_refused():
    with pytest.raises(ValueError, match="greater than 0"):
        counts(draws=0)
    with pytest.raises(ValueError, match="set_size 2 must divide draws 3"):
        counts(draws=3, set_size=2)
    with pytest.raises(ValueError, match="draw_weights must be 2 numbers"):
        blocks(draws=2, draw_weights=(1.0,))


def test_standard_errors_come_from_independent_sets():
    rows, adapter = one_row(MASKED), MASKED
    estimator = counts(draws=4, set_size=2)
    views = estimator.plan(rows, context_of(adapter))
    scores = adapter.token_logp(views)
    sums = (views.weight * scores.logp).sum(dim=1).detach()
    expected = sums.view(2, 2).mean(dim=1).std() / math.sqrt(2)
    torch.testing.assert_close(estimator.reduce(views, scores, rows).stderr[0], expected)
    single = counts().plan(rows, context_of(adapter))
    assert counts().reduce(single, adapter.token_logp(single), rows).stderr is None


@pytest.mark.parametrize(("weights", "bound"), [((0.25, 0.75), "lower"), ((0.5, 1.5), "surrogate")])
def test_weighted_draws_have_the_bound_and_the_standard_error_of_their_sum(weights, bound):
    rows, weighted, plain = one_row(BLOCK), blocks(draws=2, draw_weights=weights), blocks(draws=2)
    found = values(weighted, BLOCK, rows).mean()
    torch.testing.assert_close(found, sum(weights) * exact_elbo(BLOCK, rows).detach(), rtol=1e-12, atol=0)
    assert weighted.bound == bound
    views = plain.plan(rows, context_of(BLOCK))
    scores = BLOCK.token_logp(views)
    spread = (views.weight * scores.logp).sum(dim=1).detach().std()
    torch.testing.assert_close(weighted.reduce(views, scores, rows).stderr[0], spread * math.hypot(*weights))
    torch.testing.assert_close(plain.reduce(views, scores, rows).stderr[0], spread / math.sqrt(2))
