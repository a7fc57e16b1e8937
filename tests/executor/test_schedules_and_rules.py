"""Schedules, and the rules that came with further families: counts, thresholds, budgets, chance, edits."""

from __future__ import annotations

import math

import pytest
import torch
from tests.executor.decoding import decode, scripted, settings
from torch import Tensor

from dare_core.diffusion.draws import AddressedDraws, Places
from dare_core.diffusion.proposal import proposer
from dare_core.diffusion.rules import OPTIONS, RULES, find_rule
from dare_core.diffusion.schedules import commit_quota, linear_time_quota
from dare_core.diffusion.selection import (
    edited,
    entropy_bounded,
    independent,
    select,
    threshold_or_quota,
    threshold_within_quota,
)
from dare_core.errors import UserError
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import Address, DecodingSettings, SelectionRule

ONE = torch.tensor([1])


def quotas(size: int, masks: list[int], protocol: DecodingSettings, kind: str = "low-confidence") -> list[float]:
    """The quota of each step, if these many masks are left before it."""
    steps = torch.arange(len(masks))
    rule = find_rule(SelectionRule(kind))
    return commit_quota(protocol, rule, torch.full_like(steps, size), torch.tensor(masks), steps).tolist()


def chosen(picked: Tensor) -> list[int]:
    return picked[0].nonzero()[:, 0].tolist()


def test_even_quotas_count_the_masks_and_even_block_the_whole_block() -> None:
    assert quotas(3, [3, 2, 1], settings(8, 8, 4)) == [1, 1, 1]
    assert quotas(3, [3], settings(8, 8, 4, schedule="even-block")) == [2]
    assert quotas(8, [8, 5, 2], settings(8, 8, 3, schedule="even-block")) == [3, 3, 2]


def test_linear_time_takes_the_whole_part_and_leaves_the_rest_to_the_last_step() -> None:
    """Dream, 16 tokens in 16 steps: time ends at 0.001, so that the first step would commit 0.999 tokens."""
    left, counts = 16, []
    for step in range(16):
        quota = linear_time_quota(torch.tensor([left]), 16, torch.tensor([step]), 1e-3)
        counts.append(int(quota.floor()))
        left -= counts[-1]
    assert counts == [0, *[1] * 14, 2]
    assert linear_time_quota(torch.tensor([5]), 4, torch.tensor([9]), 1e-3).tolist() == [5]


def test_linear_time_is_rounded_in_float32_as_published() -> None:
    for steps in (3, 7, 10, 64):
        time = torch.linspace(1, 1e-3, steps + 1)
        for step in range(steps - 1):
            for count in (1, 5, 32, 100):
                published = int(torch.tensor(float(count)) * (1 - time[step + 1] / time[step]))
                ours = linear_time_quota(torch.tensor([count]), steps, torch.tensor([step]), 1e-3)
                assert int(ours.floor()) == published


def test_steps_without_a_commit_count_as_forwards() -> None:
    result = decode(ToyMasked(8, 24, 3), [[0, 1], [2]], settings(16, schedule="linear-time", temperature=1.0))
    assert result.forwards.tolist() == [16, 16]
    for row in result.commit_step:
        assert row[row >= 0].bincount(minlength=16).tolist() == [0, *[1] * 14, 2]


def test_more_steps_than_tokens_are_only_for_the_linear_time_schedule() -> None:
    result = decode(ToyMasked(8, 24, 3), [[0]], settings(4, 4, 9, schedule="linear-time"))
    assert (result.commit_step[0, 1:] >= 0).all()
    with pytest.raises(ValueError, match="exceeds block_length"):
        settings(4, 4, 9)


def test_what_is_left_of_a_budget_is_carried_over() -> None:
    assert quotas(8, [8, 7, 4, 4, 3], settings(8, 8, 4), "budgeted-threshold") == [2, 3, 2, 4, 3]


def test_threshold_counts_only_if_it_fills_the_quota() -> None:
    confidence, masked = torch.tensor([[0.9, 0.8, 0.2, 0.95]]), torch.tensor([[True, True, True, False]])
    for quota, bound, wanted in (
        (1, 0.7, [0, 1]),
        (2, 0.7, [0, 1]),
        (3, 0.7, [0, 1, 2]),
        (2, 0.85, [0, 1]),
        (1, 0.9, [0]),
    ):
        assert chosen(threshold_or_quota(confidence, masked, torch.tensor([quota]), bound)) == wanted
    assert chosen(threshold_or_quota(confidence, masked, torch.tensor([9]), 0.99)) == [0, 1, 2]


def test_budget_and_threshold_both_bound_and_the_best_always_commits() -> None:
    confidence, masked = torch.tensor([[0.9, 0.8, 0.2, 0.7]]), torch.ones(1, 4, dtype=torch.bool)
    for quota, bound, wanted in ((2, 0.75, [0, 1]), (1, 0.75, [0]), (4, 0.75, [0, 1]), (3, 0.95, [0])):
        assert chosen(threshold_within_quota(confidence, masked, torch.tensor([quota]), bound)) == wanted


def test_entropies_are_summed_from_the_lowest_up_to_the_bound() -> None:
    confidence, masked = -torch.tensor([[0.3, 0.1, 0.2, 0.05]]), torch.tensor([[True, True, True, False]])
    for bound, wanted in ((0.05, [1]), (0.25, [1]), (0.31, [1, 2]), (0.7, [0, 1, 2])):
        assert chosen(entropy_bounded(confidence, masked, ONE, bound)) == wanted


def test_independent_positions_commit_with_the_share_of_the_quota() -> None:
    uniform, masked = torch.tensor([[0.1, 0.4, 0.6, 0.2]]), torch.tensor([[True, True, True, False]])
    for quota, wanted in ((0.0, []), (0.9, [0]), (1.5, [0, 1]), (3.0, [0, 1, 2])):
        assert chosen(independent(uniform, masked, torch.tensor([quota], dtype=torch.float64))) == wanted


def test_edits_need_a_threshold_and_mean_the_same_probability_in_both_forms() -> None:
    everywhere = torch.ones(1, 3, dtype=torch.bool)
    p = torch.tensor([[0.2, 0.5, 0.9]], dtype=torch.float64)
    for threshold, wanted in ((0.0, [0, 1, 2]), (0.4, [1, 2]), (1.0, [])):
        rule = find_rule(SelectionRule("joint-threshold", {"edit_threshold": threshold}))
        assert chosen(edited(rule, "published", p, everywhere)) == wanted
        assert chosen(edited(rule, "exact", p.logit(), everywhere)) == wanted
    assert not edited(find_rule(SelectionRule("entropy")), "exact", p, everywhere).any()


def test_an_order_temperature_draws_positions_by_the_softmax_of_their_confidence() -> None:
    """Exact probabilities of a first pick against many addressed draws."""
    toy, temperature, rows = scripted([[2.0, 0.0], [1.0, 0.0], [0.3, 0.0]]), 0.2, 40_000
    rule = find_rule(SelectionRule("maskgit-plus", {"order_temperature": temperature}))
    protocol = settings(3, selection="maskgit-plus")
    propose = proposer(
        toy.facts,
        protocol,
        rule,
        AddressedDraws(Address(1, "order")),
        sampler="categorical",
        ties="exact",
        device=torch.device("cpu"),
    )
    logits = torch.cat([toy.module.bias.detach(), torch.full((3, 1), -1e9, dtype=torch.float64)], dim=1)
    sample = torch.arange(rows).repeat_interleave(3)
    place = Places(sample, sample, torch.zeros_like(sample), torch.arange(3).repeat(rows))
    confidence = propose(logits.repeat(rows, 1), place).confidence.view(rows, 3)
    picked = select(rule)(confidence, torch.ones(rows, 3, dtype=torch.bool), torch.ones(rows))
    wanted = (logits.softmax(dim=1).amax(dim=1) / temperature).softmax(dim=0)
    error = (wanted * (1 - wanted) / rows).sqrt()
    assert ((picked.double().mean(dim=0) - wanted).abs() < 4 * error).all()


def test_the_mask_token_stays_in_the_softmax_of_the_sampling_distribution() -> None:
    """Its logit is 0, as the others' are: a third of the probability, so 1/3 and not 1/2."""
    toy = scripted([[0.0, 0.0, 0.0]])
    rule = find_rule(SelectionRule("dynamic-threshold"))
    for protocol in (settings(1, temperature=1.0), settings(1, temperature=0.0), settings(1, top_p=0.99)):
        propose = proposer(
            toy.facts,
            protocol,
            rule,
            AddressedDraws(Address(0, "x")),
            sampler="categorical",
            ties="published",
            device=torch.device("cpu"),
        )
        place = Places(*(torch.zeros(1, dtype=torch.int64) for _ in range(4)))
        made = propose(torch.zeros(1, 4), place)
        assert made.token.item() != toy.facts.mask_id
        assert made.confidence.item() == pytest.approx(1 / 4)
        assert made.logp.item() == pytest.approx(math.log(1 / 4))


def test_filters_that_leave_only_the_mask_token_give_the_likeliest_other() -> None:
    toy = scripted([[0.0, 0.0, 0.0]])
    for temperature in (0.0, 1.0):
        protocol = settings(1, temperature=temperature, top_k=1)
        propose = proposer(
            toy.facts,
            protocol,
            find_rule(SelectionRule()),
            AddressedDraws(Address(0, "x")),
            sampler="categorical",
            ties="exact",
            device=torch.device("cpu"),
        )
        place = Places(*(torch.zeros(1, dtype=torch.int64) for _ in range(4)))
        assert propose(torch.tensor([[0.0, 2.0, 1.0, 9.0]]), place).token.tolist() == [1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("at_least", 0), ("at_least", 1.5), ("max_post_steps", -1), ("edit_threshold", 1.1), ("threshold", True)],
)
def test_wrong_values_of_options_name_what_is_allowed(name: str, value: object) -> None:
    with pytest.raises(UserError) as caught:
        find_rule(SelectionRule("joint-threshold", {name: value}))
    assert OPTIONS[name][0] in str(caught.value)


def test_every_option_of_every_rule_is_described_and_a_field() -> None:
    for rule in RULES.values():
        for name in rule.options:
            assert name in OPTIONS
            assert hasattr(rule, name)
