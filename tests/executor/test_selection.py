"""Confidences and the table of selection rules."""

from __future__ import annotations

import math

import pytest
import torch

from dare_core.diffusion.confidence import (
    entropy,
    entropy_confidence,
    log_odds,
    log_probability,
    margin_confidence,
    token_confidence,
)
from dare_core.diffusion.rules import RULES, find_rule
from dare_core.diffusion.selection import above_threshold, most_confident, select
from dare_core.errors import UserError
from dare_core.types import SelectionRule

# Two tokens, the first surer in each row; from the third row on its probability rounds to 1 in float32,
# from the fifth in float64.
SURE = torch.tensor([[1.0, 0.0], [10.0, 0.0], [20.0, 0.0], [30.0, 0.0], [40.0, 0.0], [60.0, 0.0]])
FIRST = torch.zeros(6, dtype=torch.int64)
MASKED = torch.tensor([[True, True, False, True]])


def test_exact_confidences_keep_the_order_next_to_certainty() -> None:
    for confidence in (token_confidence(SURE, FIRST), margin_confidence(SURE), entropy_confidence(SURE)):
        assert (confidence.diff() > 0).all()


def test_published_confidences_are_probabilities_with_ties() -> None:
    confidence = token_confidence(SURE, FIRST, "published")
    assert confidence[0].item() == pytest.approx(1 / (1 + math.exp(-1)))
    assert confidence[4] == confidence[5] == 1
    assert margin_confidence(SURE, "published")[5] == 1
    assert entropy_confidence(SURE, "published")[5] == pytest.approx(0, abs=1e-9)


def test_log_probability_is_accurate_at_both_ends() -> None:
    logits = torch.tensor([[50.0, 0.0], [-50.0, 0.0], [0.0, 0.0]])
    logp = log_probability(log_odds(logits, torch.zeros(3, dtype=torch.int64)))
    assert logp.tolist() == pytest.approx([-math.exp(-50), -50, -math.log(2)], rel=1e-12)


def test_entropy_matches_its_definition_and_ignores_excluded_tokens() -> None:
    logits = torch.tensor([[0.3, -1.0, 2.0, -torch.inf]], dtype=torch.float64)
    p = logits[:, :3].softmax(dim=1)
    assert entropy(logits).item() == pytest.approx(float(-(p * p.log()).sum()), rel=1e-12)
    assert entropy(torch.tensor([[40.0, 0.0]])).item() == pytest.approx(41 * math.exp(-40), rel=1e-9)
    assert entropy(torch.tensor([[1.0, -torch.inf]])).item() == 0


def test_margin_matches_its_definition() -> None:
    logits = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64)
    top = logits.softmax(dim=1).sort(descending=True).values[0]
    assert margin_confidence(logits).item() == pytest.approx(-math.log(1 - float(top[0] - top[1])), rel=1e-12)


def test_excluded_token_has_the_lowest_confidence() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0]])
    token = torch.tensor([0])
    assert token_confidence(logits, token) == -torch.inf
    assert token_confidence(logits, token, "published") == 0


def test_most_confident_takes_the_quota_inside_the_mask() -> None:
    confidence = torch.tensor([[0.1, 0.7, 0.9, 0.3]])
    for quota, expected in ((0, []), (1, [1]), (2, [1, 3]), (9, [0, 1, 3])):
        chosen = most_confident(confidence, MASKED, torch.tensor([quota]))
        assert chosen[0].nonzero()[:, 0].tolist() == expected


def test_equal_confidences_commit_the_lower_position() -> None:
    chosen = most_confident(torch.full((1, 4), 0.5), MASKED, torch.tensor([2]))
    assert chosen.tolist() == [[True, True, False, False]]


def test_positions_without_any_confidence_commit_last_but_commit() -> None:
    confidence = torch.tensor([[-torch.inf, -torch.inf, 5.0, -3.0]])
    assert most_confident(confidence, MASKED, torch.tensor([1])).tolist() == [[False, False, False, True]]
    assert most_confident(confidence, MASKED, torch.tensor([3])).tolist() == MASKED.tolist()


def test_threshold_commits_all_above_it_and_always_the_best() -> None:
    confidence = torch.tensor([[0.1, 0.7, 0.9, 0.8]])
    quota = torch.tensor([1])
    assert above_threshold(confidence, MASKED, quota, 0.6).tolist() == [[False, True, False, True]]
    assert above_threshold(confidence, MASKED, quota, 0.95).tolist() == [[False, False, False, True]]


@pytest.mark.parametrize("threshold", [0.2, 0.9, 1.0])
def test_threshold_means_a_probability_in_both_forms(threshold: float) -> None:
    logits = torch.tensor([[0.0, 0.0], [2.0, 0.0], [3.0, 0.0], [9.0, 0.0]], dtype=torch.float64)
    rule = find_rule(SelectionRule("confidence-threshold", {"threshold": threshold}))
    token, quota, everywhere = torch.zeros(4, dtype=torch.int64), torch.tensor([1]), torch.ones(1, 4, dtype=torch.bool)
    chosen = [
        select(rule, ties)(token_confidence(logits, token, ties)[None], everywhere, quota)
        for ties in ("exact", "published")
    ]
    wanted = logits.softmax(dim=1)[:, 0] >= threshold
    wanted[3] = True
    assert torch.equal(chosen[0], chosen[1])
    assert torch.equal(chosen[0][0], wanted)


@pytest.mark.parametrize("kind", sorted(kind for kind, rule in RULES.items() if rule.noise == "mask"))
def test_every_rule_commits_masked_positions_only_and_at_least_one(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(40, 7, generator=generator, dtype=torch.float64)
    masked = torch.rand(40, 7, generator=generator) < 0.5
    # A quota of everything, so that rules that decide by chance have none either.
    quota = masked.sum(dim=1) if RULES[kind].selector == "independent" else torch.ones(40, dtype=torch.int64)
    chosen = select(find_rule(SelectionRule(kind)))(confidence, masked, quota)
    assert not (chosen & ~masked).any()
    assert torch.equal(chosen.any(dim=1), masked.any(dim=1))


def test_unknown_rule_names_the_nearest_ones() -> None:
    with pytest.raises(UserError, match=r"low-confidance.*did you mean low-confidence"):
        find_rule(SelectionRule("low-confidance"))


def test_unknown_and_wrong_options_are_reported_together() -> None:
    with pytest.raises(UserError) as caught:
        find_rule(SelectionRule("confidence-threshold", {"treshold": 0.5, "distribution": "best", "threshold": 7}))
    assert [problem.path for problem in caught.value.problems] == [
        "rollout.selection.options.treshold",
        "rollout.selection.options.distribution",
        "rollout.selection.options.threshold",
    ]
