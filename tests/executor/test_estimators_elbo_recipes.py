"""What published fine-tuning recipes do with Bernoulli masks, and SPG's two estimates."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.draw_enumeration import context_of
from tests.executor.elbo_estimators import MASKED, bernoulli, one_row, spg
from tests.executor.toy_training import toy_rows
from tests.goldens.handlers.algos_elbo_draws import exact_upper
from tests.made_inputs import rows_of

from dare_algos_elbo.estimators.bernoulli import cropped
from dare_algos_elbo.estimators.token_weights import focal_logp
from dare_core.testing.enumeration import exact_elbo, token_elbo
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import Scores


def test_redrawn_rows_have_a_hidden_token_and_others_keep_their_draw():
    adapter, rows = ToyMasked(8, 16), toy_rows(60)
    plain, redrawn = (bernoulli(redraws=n).plan(rows, context_of(adapter)) for n in (0, 10))
    empty = ~plain.scored.any(dim=1)
    assert empty.any()
    assert redrawn.scored.any(dim=1).all()
    assert torch.equal(plain.inputs[~empty], redrawn.inputs[~empty])
    forced = bernoulli(redraws=1, time_low=1e-9, time_high=1e-9).plan(rows, context_of(adapter))
    assert (forced.scored.sum(dim=1) == 1).all()
    assert bernoulli(redraws=1).bound == "surrogate"


def test_complementary_views_score_every_token_once():
    rows = toy_rows(20)
    views = bernoulli(complementary=True, weight="none").plan(rows, context_of(ToyMasked(8, 16)))
    first, second = views.scored[views.draw == 0], views.scored[views.draw == 1]
    assert torch.equal(first ^ second, rows.response)
    assert not (first & second).any()


def test_closing_end_tokens_are_hidden_together():
    tokens = torch.tensor([[0, 6, 1, 6, 6, 6], [0, 1, 2, 3, 4, 6]])
    column = torch.arange(6).expand(2, 6)
    rows = rows_of(tokens, column < 1, column >= 1)
    views = bernoulli(draws=40, end_run_as_one=True).plan(rows, context_of(ToyMasked(8, 16)))
    run = views.scored[views.row == 0][:, 3:]
    assert (run.all(dim=1) == run.any(dim=1)).all()
    assert 0 < int(run[:, 0].sum()) < 40
    assert (views.scored[views.row == 0][:, 1] != run[:, 0]).any()


def test_cropping_cuts_every_response_to_the_length_of_one():
    rows = toy_rows()
    lengths = set(rows.response.sum(dim=1).tolist())
    seen = set()
    for step in range(12):
        context = context_of(ToyMasked(8, 16))
        context = replace(context, address=replace(context.address, step=step))
        views = bernoulli(crop="batch", time_low=1.0 - 1e-9, time_high=1.0).plan(rows, context)
        found = views.scored.sum(dim=1)
        limit = int(found.max())
        seen.add(limit)
        assert torch.equal(found, rows.response.sum(dim=1).clamp(max=limit))
    assert len(seen) > 1
    assert seen <= lengths


def test_spg_lower_estimate_of_whole_responses_is_the_elbo_per_token():
    rows = one_row(MASKED)
    estimator = spg(draws=1, masking="random", context_mask=0.0)
    total, outcomes = torch.zeros((), dtype=torch.float64), 0
    for count in (1, 2, 3):
        for order in torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]):
            numbers = torch.ones(1, 5, dtype=torch.float64)
            numbers[0, 2:] = order / 9
            zero = torch.zeros(1, dtype=torch.int64)
            views = estimator.views(rows, context_of(MASKED), zero, torch.tensor([count]), numbers, numbers)
            estimate = estimator.reduce(views, MASKED.token_logp(views), rows)
            # For one draw the upper estimate lies above by log(1/t) / beta exactly.
            torch.testing.assert_close(
                estimate.upper - estimate.value, torch.tensor([math.log(3 / count) / 1.5]).double()
            )
            total, outcomes = total + estimate.value[0], outcomes + 1
    torch.testing.assert_close(3 * total / outcomes, exact_elbo(MASKED, rows), rtol=1e-12, atol=0)


def test_spg_upper_estimate_rises_with_its_power_from_the_lower_one():
    rows = one_row(MASKED)
    found = [float(exact_upper(MASKED, rows, power)) for power in (1e-6, 0.5, 1.0, 1.5, 2.0)]
    assert found == sorted(found)
    assert found[0] == pytest.approx(float(token_elbo(MASKED, rows).detach().sum() / 3), abs=1e-4)


def test_spg_hides_what_follows_the_chosen_block_and_scores_the_completion():
    tokens = torch.arange(14)[None] % 6
    column = torch.arange(14)[None]
    rows = rows_of(tokens, column < 2, column >= 2, completion=(column >= 2) & (column < 9))
    views = spg(draws=3, block_length=4, context_mask=0.0).plan(rows, context_of(ToyMasked(8, 16)))
    hidden = views.inputs == 7
    assert hidden[:, 9:].all()
    assert not hidden[:, :2].any()
    assert not views.scored[:, 9:].any()
    for line in hidden:
        in_first = bool(line[2:6].any())
        assert line[6:9].all() if in_first else line[6:9].any()


def test_spg_keeps_tokens_of_tiny_probability_in_its_upper_estimate():
    rows = one_row(MASKED)
    estimator = spg(draws=1, masking="all", context_mask=0.0)
    views = estimator.plan(rows, context_of(MASKED))
    leaf = torch.tensor([[0.0, 0.0, -900.0, -1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    upper = estimator.reduce(views, Scores(logp=leaf), rows).upper
    torch.testing.assert_close(upper, torch.tensor([-301.0], dtype=torch.float64))
    assert torch.isfinite(torch.autograd.grad(upper.sum(), leaf)[0]).all()


def test_cropping_to_a_length_happens_at_its_share_of_steps_and_covers_the_lengths():
    rows = toy_rows()
    longest, found = int(rows.response.sum(dim=1).amax()), []
    for step in range(300):
        context = context_of(ToyMasked(8, 16))
        context = replace(context, address=replace(context.address, step=step))
        views = bernoulli(crop="length", crop_chance=0.5, time_low=1.0 - 1e-9, time_high=1.0).plan(rows, context)
        found.append(int(views.scored.sum(dim=1).amax()))
        assert torch.equal(views.scored.sum(dim=1), rows.response.sum(dim=1).clamp(max=found[-1]))
    # Half of the steps are not cut, and of the others one in `longest` is cut to the whole length.
    assert 0.5 < found.count(longest) / 300 < 0.72
    assert set(found) == set(range(1, longest + 1))


def test_cropping_drops_given_turns_behind_the_cut():
    tokens = torch.arange(7)[None] % 6
    response = torch.tensor([[0, 1, 1, 0, 0, 1, 1]]).bool()
    cut = cropped(rows_of(tokens, ~response, response), torch.tensor(0.3), "length")
    assert cut.response.long().tolist() == [[0, 1, 1, 0, 0, 0, 0]]
    assert cut.prompt.long().tolist() == [[1, 0, 0, 0, 0, 0, 0]]


def test_the_focal_factor_weighs_each_token_by_what_is_left_to_learn():
    rows, adapter = toy_rows(), ToyMasked(8, 16, seed=1)
    plain, focal = bernoulli(draws=2), bernoulli(draws=2, focal_power=2.0, focal_scale=0.25)
    views = plain.plan(rows, context_of(adapter))
    logp = adapter.token_logp(views).logp.detach()
    values = (views.weight * 0.25 * (1 - logp.exp()) ** 2 * logp).sum(dim=1).view(6, 2).mean(dim=1)
    torch.testing.assert_close(focal.reduce(views, Scores(logp=logp), rows).value, values)
    assert focal.bound == "surrogate"
    same = bernoulli(draws=2, focal_power=0.0)
    torch.testing.assert_close(
        same.reduce(views, Scores(logp=logp), rows).value, plain.reduce(views, Scores(logp=logp), rows).value
    )


def test_the_gradient_of_the_focal_factor_is_its_derivative_and_finite_for_certain_tokens():
    logp = torch.tensor([-3.0, -0.5, -1e-3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: focal_logp(given, 2.0), (logp,))
    certain = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    focal_logp(certain, 0.5).sum().backward()
    assert certain.grad is not None
    assert bool(certain.grad.isfinite().all())
