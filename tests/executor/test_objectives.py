"""Advantages, clips, KL forms and reductions."""

from __future__ import annotations

import pytest
import torch
from tests.made_inputs import rollout_of, rows_of, verdicts_of

from dare_core.objectives import reductions
from dare_core.objectives.advantages import group_relative, rollout_advantages, score_metrics
from dare_core.objectives.clips import clipped_surrogate
from dare_core.objectives.kl import KL_FORMS, k1, k2, k3
from dare_core.objectives.ratios import sequence_ratio, token_ratio

REWARDS = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0])
GROUPS = torch.arange(12) // 4


def random_rewards(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("scale", "best", "rest"), [("std", 1.4997, -0.4999), ("population-std", 1.7317, -0.5772), ("none", 0.75, -0.25)]
)
def test_advantage_of_the_one_right_answer(scale, best, rest):
    found = group_relative(REWARDS, GROUPS, scale=scale, eps=1e-4)
    torch.testing.assert_close(found[:4], torch.tensor([best, rest, rest, rest]), atol=5e-5, rtol=0)
    assert torch.equal(found[4:], torch.zeros(8))


def test_two_of_three_groups_without_differing_rewards_are_reported():
    metrics = score_metrics(REWARDS, GROUPS, torch.ones(12, dtype=torch.bool))
    assert metrics["zero_variance_share"] == pytest.approx(2 / 3)
    assert metrics["reward_mean"] == pytest.approx(5 / 12)


@pytest.mark.parametrize("scale", ["none", "std", "population-std"])
@pytest.mark.parametrize("value", [0.1, 1 / 3, -7.3])
def test_equal_rewards_give_exactly_zero_whatever_their_rounding(scale, value):
    scores = torch.full((7,), value, dtype=torch.float32)
    assert torch.equal(group_relative(scores, torch.zeros(7, dtype=torch.int64), scale=scale), torch.zeros(7))


def test_centred_advantages_sum_to_zero_in_each_group():
    found = group_relative(random_rewards(12), GROUPS)
    assert torch.zeros(3, dtype=torch.float64).index_add(0, GROUPS, found).abs().max() < 1e-12


def test_leave_one_out_is_the_centred_advantage_times_g_over_g_minus_one():
    scores = random_rewards(12)
    others = torch.stack(
        [scores[i] - scores[(GROUPS[i] == GROUPS) & (torch.arange(12) != i)].mean() for i in range(12)]
    )
    found = group_relative(scores, GROUPS, baseline="leave-one-out")
    torch.testing.assert_close(found, others)
    torch.testing.assert_close(found, group_relative(scores, GROUPS) * 4 / 3)


@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
@pytest.mark.parametrize("scale", ["none", "std"])
def test_advantages_follow_their_rows_in_any_order(baseline, scale):
    scores, order = random_rewards(12), torch.randperm(12, generator=torch.Generator().manual_seed(1))
    straight = group_relative(scores, GROUPS, baseline=baseline, scale=scale)
    shuffled = group_relative(scores[order], 100 - 7 * GROUPS[order], baseline=baseline, scale=scale)
    torch.testing.assert_close(shuffled, straight[order])


@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
def test_a_failed_verdict_enters_no_statistic(baseline):
    rows = rows_of(torch.zeros(5, 1, dtype=torch.int64), *_one_response_token(5))
    whole = rollout_advantages(
        rollout_of(rows, torch.zeros(5, 1, dtype=torch.int64)),
        verdicts_of([1.0, None, 0.0, float("nan"), 0.5]),
        baseline=baseline,
        scale="std",
    )
    kept = group_relative(
        torch.tensor([1.0, 0.0, 0.5]), torch.zeros(3, dtype=torch.int64), baseline=baseline, scale="std"
    )
    assert whole.usable.tolist() == [True, False, True, False, True]
    torch.testing.assert_close(whole.value[whole.usable], kept)
    assert whole.value[~whole.usable].tolist() == [0.0, 0.0]
    assert whole.statistics["reward_mean"] == pytest.approx(0.5)
    assert whole.statistics["unusable_share"] == pytest.approx(0.4)


def _one_response_token(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(count, 1, dtype=torch.bool), torch.ones(count, 1, dtype=torch.bool)


def test_a_lone_usable_row_gets_zero_or_its_raw_score():
    scores, group = torch.tensor([0.7, float("nan"), 0.2, 0.4]), torch.tensor([5, 5, 1, 1])
    assert group_relative(scores, group)[:2].tolist() == [0.0, 0.0]
    assert group_relative(scores, group, single="raw")[0] == pytest.approx(0.7)
    assert group_relative(scores, group, single="raw", baseline="leave-one-out")[0] == pytest.approx(0.7)


def test_a_batch_whose_verdicts_all_failed_has_no_reward_mean():
    metrics = score_metrics(torch.zeros(3), torch.arange(3), torch.zeros(3, dtype=torch.bool))
    assert metrics == {"zero_variance_share": 1.0, "unusable_share": 1.0}


def surrogate_gradient(ratio: float, advantage: float, **options) -> tuple[float, float]:
    r = torch.tensor(ratio, requires_grad=True)
    loss = clipped_surrogate(r, torch.tensor(advantage), 0.2, 0.3, **options).loss
    return float(loss.detach()), float(torch.autograd.grad(loss, r)[0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.4, 2.0, -2.6, 0.0),  # above the bound, gain: clipped
        (0.7, 2.0, -1.4, -2.0),  # below the bound, gain: pulled back
        (0.7, -2.0, 1.6, 0.0),  # below the bound, loss: clipped
        (1.4, -2.0, 2.8, 2.0),  # above the bound, loss: pulled back
    ],
)
def test_clipping_stops_the_gradient_only_where_the_minimum_takes_the_clipped_branch(ratio, advantage, loss, gradient):
    assert surrogate_gradient(ratio, advantage) == pytest.approx((loss, gradient))


def test_dual_clip_changes_only_negative_advantages_beyond_c():
    assert surrogate_gradient(4.0, -2.0, dual_clip=3.0) == pytest.approx((6.0, 0.0))
    for ratio, advantage in ((4.0, 2.0), (0.5, 2.0), (2.9, -2.0), (0.5, -2.0)):
        assert surrogate_gradient(ratio, advantage, dual_clip=3.0) == surrogate_gradient(ratio, advantage)


def test_branches_are_told_apart():
    found = clipped_surrogate(torch.tensor([1.0, 2.0, 0.5, 4.0]), torch.tensor([1.0, 1.0, 1.0, -1.0]), 0.2, 0.2, 3.0)
    assert found.clipped.tolist() == [False, True, False, False]
    assert found.outside.tolist() == [False, False, True, True]
    assert found.capped.tolist() == [False, False, False, True]


def test_every_kl_form_is_zero_at_the_reference():
    zero = torch.zeros(3, dtype=torch.float64)
    for form in KL_FORMS.values():
        assert torch.equal(form(zero), zero)


def test_kl_forms_agree_to_second_order_and_k3_is_never_negative():
    d = torch.linspace(-1e-3, 1e-3, 21, dtype=torch.float64)
    torch.testing.assert_close(k3(d), k2(d), atol=1e-9, rtol=0)
    assert (k3(torch.linspace(-5, 5, 101, dtype=torch.float64)) >= 0).all()
    assert torch.equal(k1(d), d)


def test_k3_clamp_stops_the_gradient():
    d = torch.tensor([-20.0, -1.0], requires_grad=True)
    k3(d, 10.0).sum().backward()
    assert d.grad.tolist() == pytest.approx([0.0, 1 - torch.e])


def test_ratios_of_tokens_and_sequences():
    live, old = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.0]])
    torch.testing.assert_close(token_ratio(live, old), torch.tensor([[0.5, 0.0]]).exp())
    torch.testing.assert_close(token_ratio(live, old, 0.1), torch.tensor([[0.1, 0.0]]).exp())
    torch.testing.assert_close(sequence_ratio(live.sum(1), old.sum(1), 2.0), torch.tensor([0.25]).exp())


VALUES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
ALL = {
    "token-mean": reductions.token_mean,
    "sequence-mean-token-sum": reductions.sequence_mean_token_sum,
    "sequence-mean-token-mean": reductions.sequence_mean_token_mean,
    "fixed-length": lambda values, mask: reductions.fixed_length(values, mask, 5.0, 3),
    "step-mean": lambda values, mask: reductions.step_mean(values, mask, torch.tensor([0, 1, 1])),
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token-mean", 10 / 4),
        ("sequence-mean-token-sum", 10 / 3),
        ("sequence-mean-token-mean", (2 + 4) / 2),
        ("fixed-length", 10 / 15),
        ("step-mean", (2 + 4) / 2),
    ],
)
def test_reductions_divide_by_what_they_say(name, expected):
    assert float(ALL[name](VALUES, MASK)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ALL)
def test_nothing_counted_gives_zero_with_a_graph(name):
    values = VALUES.clone().requires_grad_()
    total = ALL[name](values, torch.zeros_like(MASK))
    total.backward()
    assert total.item() == 0.0
    assert torch.equal(values.grad, torch.zeros_like(VALUES))


@pytest.mark.parametrize("name", ALL)
def test_masked_out_entries_may_hold_nan(name):
    values = VALUES.masked_fill(~MASK, float("nan")).requires_grad_()
    total = ALL[name](values, MASK)
    total.backward()
    assert total.item() == pytest.approx(float(ALL[name](VALUES, MASK)))
    assert torch.isfinite(values.grad).all()


def test_lines_of_one_sequence_are_summed_before_the_mean_over_sequences():
    row = torch.tensor([1, 0, 1])
    everything = torch.ones_like(MASK)
    assert float(reductions.sequence_mean_token_sum(VALUES, everything, row)) == pytest.approx(45 / 2)
    assert float(reductions.sequence_mean_token_mean(VALUES, everything, row)) == pytest.approx((30 / 6 + 15 / 3) / 2)


def test_uncounted_sequences_leave_the_divisor():
    counted = torch.tensor([True, True, False])
    assert float(reductions.sequence_mean_token_sum(VALUES, MASK, counted=counted)) == pytest.approx(5)
