"""Preference and RL losses on ELBO estimates: identities that hold whatever the model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.made_estimates import leaf, loss_of
from tests.made_inputs import rows_of, verdicts_of
from torch import Tensor

from dare_algos_elbo.bgpo import Bgpo
from dare_algos_elbo.config import BgpoSection, DpoSection, EbpoSection, EspoSection, SpgSection, VrpoSection
from dare_algos_elbo.dpo import Dpo, pair_indices
from dare_algos_elbo.ebpo import Ebpo
from dare_algos_elbo.espo import Espo
from dare_algos_elbo.spg import Spg
from dare_core.objectives.clips import clipped_log_surrogate, clipped_surrogate
from dare_core.types import PairRows

LENGTHS = torch.tensor([3, 5, 4, 6])
ADVANTAGES = torch.tensor([1.0, -0.5, 0.0, 2.0], dtype=torch.float64)
VALUES = torch.tensor([-4.0, -7.0, -3.0, -9.0], dtype=torch.float64)


def made_pairs(count: int = 2, length: int = 4) -> PairRows:
    full = torch.ones(2 * count, length, dtype=torch.bool)
    rows = rows_of(full.long(), ~full, full, group=torch.arange(count).repeat_interleave(2))
    fields = {name: getattr(rows, name) for name in type(rows).__dataclass_fields__}
    return PairRows(**fields, preferred=torch.tensor([True, False] * count))


def reordered(rows: PairRows, order: Tensor) -> PairRows:
    names = ("tokens", "prompt", "response", "completion", "sample_id", "group", "preferred")
    return replace(rows, **{name: getattr(rows, name)[order] for name in names})


def test_equal_policies_give_log_two():
    loss = loss_of(Dpo(VrpoSection()), VALUES, rows=made_pairs(), reference=VALUES).loss
    assert loss.item() == pytest.approx(math.log(2))


def test_the_gradient_on_rejected_is_that_on_chosen_reversed():
    live, beta = leaf(VALUES), 0.2
    output = loss_of(Dpo(VrpoSection()), live, rows=made_pairs(), reference=VALUES * 1.1)
    gradient = torch.autograd.grad(output.loss, live)[0].view(2, 2)
    torch.testing.assert_close(gradient[:, 0], -gradient[:, 1])
    difference = (VALUES - VALUES * 1.1).view(2, 2)
    score = beta * (difference[:, 0] - difference[:, 1])
    torch.testing.assert_close(gradient[:, 0], -beta * torch.sigmoid(-score) / 2)


def test_swapping_sides_reverses_the_score():
    rows = made_pairs()
    swapped = replace(rows, preferred=~rows.preferred)
    margins = [
        loss_of(Dpo(DpoSection()), VALUES, rows=given, reference=VALUES * 0.9).metrics["margin"].total
        for given in (rows, swapped)
    ]
    assert margins[0] == pytest.approx(-margins[1])
    assert margins[0] != 0


def test_pairs_are_found_wherever_their_rows_stand():
    rows, order = made_pairs(3), torch.tensor([4, 1, 3, 0, 5, 2])
    chosen, rejected = pair_indices(reordered(rows, order))
    assert order[chosen].tolist() == [0, 2, 4]
    assert order[rejected].tolist() == [1, 3, 5]
    with pytest.raises(ValueError, match="one chosen and one rejected"):
        pair_indices(replace(rows, preferred=torch.ones_like(rows.preferred)))


def test_label_smoothing_mixes_both_labels():
    rows = made_pairs()

    def loss(smoothing: float, given: PairRows = rows) -> float:
        algorithm = Dpo(DpoSection(label_smoothing=smoothing))
        return loss_of(algorithm, VALUES, rows=given, reference=VALUES * 0.9).loss.item()

    swapped = replace(rows, preferred=~rows.preferred)
    assert loss(0.1) == pytest.approx(0.9 * loss(0.0) + 0.1 * loss(0.0, swapped))


def test_the_supervised_term_is_the_chosen_answers_loss_per_token():
    rows = made_pairs()
    plain, mixed = (
        loss_of(Dpo(DpoSection(sft_weight=w)), VALUES, rows=rows, reference=VALUES).loss.item() for w in (0.0, 0.3)
    )
    assert mixed - plain == pytest.approx(0.3 * (4.0 + 3.0) / 4 / 2)


def test_without_a_reference_the_score_is_the_difference_of_estimates():
    algorithm = Dpo(DpoSection(reference_free=True, beta=0.5))
    assert not algorithm.uses_reference
    margin = loss_of(algorithm, VALUES, rows=made_pairs()).metrics["margin"].value
    assert margin == pytest.approx(0.5 * ((-4 + 7) + (-3 + 9)) / 2)


def test_rows_that_are_no_pairs_are_refused():
    with pytest.raises(TypeError, match="Dpo needs pairs"):
        loss_of(Dpo(DpoSection()), VALUES, lengths=LENGTHS)


@pytest.mark.parametrize(
    ("algorithm", "scale"),
    [
        (Espo(EspoSection(kl_weight=0.0)), torch.full((4,), 1 / 6)),
        (Ebpo(EbpoSection()), torch.ones(4)),
        (Ebpo(EbpoSection(ratio="per-token")), 1 / LENGTHS),
    ],
    ids=["espo", "ebpo", "ebpo-per-token"],
)
def test_on_policy_the_gradient_is_the_advantage_times_that_of_the_estimate(algorithm, scale):
    live = leaf(VALUES)
    output = loss_of(algorithm, live, lengths=LENGTHS, advantages=ADVANTAGES)
    torch.testing.assert_close(output.loss.detach(), -ADVANTAGES.mean())
    torch.testing.assert_close(torch.autograd.grad(output.loss, live)[0], -ADVANTAGES * scale.double() / 4)
    assert output.metrics["clip_fraction"].total == 0
    assert output.metrics["log_ratio"].total == 0


def bgpo_loss(live: Tensor, old: Tensor | None = None, **options: object) -> Tensor:
    """On draws [B,M]."""
    count, draws = live.shape
    return loss_of(
        Bgpo(BgpoSection(**options)),
        live.flatten(),
        lengths=LENGTHS,
        row=torch.arange(count).repeat_interleave(draws),
        draws=draws,
        old=None if old is None else old.flatten(),
        advantages=ADVANTAGES,
    ).loss


DRAWS = torch.stack([VALUES, VALUES * 1.3, VALUES - 2], dim=1)


def test_on_policy_bgpo_is_the_ratio_objective():
    live = leaf(DRAWS)
    gradient = torch.autograd.grad(bgpo_loss(live, reduction="sequence-mean-token-mean"), live)[0]
    exact = -(ADVANTAGES * ((live - DRAWS).mean(dim=1) / LENGTHS).exp()).mean()
    torch.testing.assert_close(gradient, torch.autograd.grad(exact, live)[0])


@pytest.mark.parametrize("shift", [-2.0, -0.5, 0.5, 1.5])
def test_off_policy_bgpo_lies_above_the_ratio_objective(shift):
    old = DRAWS + shift * torch.linspace(0.5, 1.5, 3)
    exact = -(ADVANTAGES * ((DRAWS - old).mean(dim=1) / LENGTHS).exp()).mean()
    options = {"clip_range": 0.99, "clip_range_high": 99.0, "dual_clip": None}
    assert bgpo_loss(DRAWS, old, reduction="sequence-mean-token-mean", **options) >= exact


def test_bgpo_stays_finite_where_the_linear_ratio_is_negative():
    live = leaf(DRAWS)
    loss = bgpo_loss(live, DRAWS + 40.0)
    assert torch.isfinite(loss)
    assert torch.isfinite(torch.autograd.grad(loss, live)[0]).all()


def test_token_reductions_of_bgpo_weigh_sequences_by_their_length():
    entries = -ADVANTAGES
    expected = {
        "token-mean": (entries * LENGTHS).sum() / LENGTHS.sum(),
        "sequence-mean-token-sum": (entries * LENGTHS).mean(),
        "sequence-mean-token-mean": entries.mean(),
        "fixed-length": (entries * LENGTHS).sum() / 6,
    }
    for name, wanted in expected.items():
        torch.testing.assert_close(bgpo_loss(DRAWS, reduction=name), wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "algorithm", [Espo(EspoSection(kl_weight=0.0)), Ebpo(EbpoSection()), Spg(SpgSection())], ids=["espo", "ebpo", "spg"]
)
def test_rows_without_a_usable_verdict_carry_no_loss_and_enter_no_divisor(algorithm):
    usable = torch.tensor([True, False, True, True])
    spoiled = torch.where(usable, VALUES, torch.nan)
    extra = {"upper": spoiled + 1} if isinstance(algorithm, Spg) else {}
    whole = loss_of(
        algorithm, spoiled, lengths=LENGTHS, advantages=ADVANTAGES, usable=usable, old=VALUES + 0.1, **extra
    ).loss
    few = torch.tensor([0, 2, 3])
    extra = {"upper": VALUES[few] + 1} if isinstance(algorithm, Spg) else {}
    part = loss_of(
        algorithm, VALUES[few], lengths=LENGTHS[few], advantages=ADVANTAGES[few], old=VALUES[few] + 0.1, **extra
    ).loss
    torch.testing.assert_close(whole, part)


def test_clip_range_zero_passes_the_full_gradient_on_policy_and_then_only_on_the_pessimistic_side():
    live = leaf(VALUES)
    algorithm = Espo(EspoSection(clip_range=0.0, kl_weight=0.0))
    on_policy = loss_of(algorithm, live, lengths=LENGTHS, advantages=ADVANTAGES).loss
    torch.testing.assert_close(torch.autograd.grad(on_policy, live)[0], -ADVANTAGES / 6 / 4)
    for shift, moving in ((0.1, [False, True, False, False]), (-0.1, [True, False, False, True])):
        # live above old: only the negative advantage still moves; below: only the positive ones.
        loss = loss_of(algorithm, live, lengths=LENGTHS, advantages=ADVANTAGES, old=VALUES - shift).loss
        assert (torch.autograd.grad(loss, live)[0] != 0).tolist() == moving


def test_the_kl_of_whole_sequences_is_divided_by_the_length_once():
    live, reference = leaf(VALUES), VALUES - torch.tensor([1.0, 2.0, 0.0, 3.0])
    plain, with_kl = (
        loss_of(
            Espo(EspoSection(kl_weight=w, length_divisor=6)), live, reference=reference, advantages=ADVANTAGES
        ).loss.item()
        for w in (0.0, 0.5)
    )
    assert with_kl - plain == pytest.approx(0.5 * (1 + 4 + 0 + 9) / 2 / 6 / 4)


def test_log_domain_clipping_equals_the_plain_form_and_does_not_overflow():
    difference = torch.linspace(-2, 2, 41, dtype=torch.float64).requires_grad_()
    for advantage in (1.5, -0.7):
        a = torch.full_like(difference, advantage)
        forms = clipped_log_surrogate(difference, a, 0.2, 0.28), clipped_surrogate(difference.exp(), a, 0.2, 0.28)
        losses = [form.loss for form in forms]
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(*(torch.autograd.grad(loss.sum(), difference)[0] for loss in losses))
        assert torch.equal(forms[0].clipped, forms[1].clipped)
        assert torch.equal(forms[0].outside, forms[1].outside)
    far = torch.tensor([5000.0], requires_grad=True)
    loss = clipped_log_surrogate(far, torch.ones(1), 0.2, 0.2).loss
    assert loss.item() == pytest.approx(-1.2)
    assert torch.autograd.grad(loss.sum(), far)[0].item() == 0.0


def test_spg_takes_the_lower_estimate_for_good_rows_and_the_chosen_one_for_others():
    lower, upper = VALUES, VALUES + 2
    for negative, expected in (("mix", VALUES + 0.5), ("upper", upper), ("lower", lower), ("zero", 0 * VALUES)):
        algorithm = Spg(SpgSection(negative=negative, mix_weight=0.25))
        chosen = algorithm.chosen(lower, upper, ADVANTAGES)
        torch.testing.assert_close(chosen, torch.where(ADVANTAGES > 0, lower, expected))


def test_rows_of_zero_advantage_have_no_gradient_in_spg():
    live, upper = leaf(VALUES), leaf(VALUES + 1)
    loss = loss_of(Spg(SpgSection()), live, lengths=LENGTHS, advantages=ADVANTAGES, upper=upper).loss
    gradients = torch.autograd.grad(loss, (live, upper))
    expected = -ADVANTAGES * LENGTHS / LENGTHS.sum()
    torch.testing.assert_close(gradients[0], expected * torch.tensor([1.0, 0.5, 0.0, 1.0]))
    torch.testing.assert_close(gradients[1], expected * torch.tensor([0.0, 0.5, 0.0, 0.0]))


def test_estimates_of_another_shape_are_refused():
    with pytest.raises(TypeError, match="Espo needs an estimate per row, not per view"):
        loss_of(Espo(EspoSection()), VALUES, row=torch.tensor([0, 0, 1, 1]), advantages=ADVANTAGES[:2])
    with pytest.raises(TypeError, match="Bgpo needs an estimate per view, not per row"):
        loss_of(Bgpo(BgpoSection()), VALUES, lengths=LENGTHS, advantages=ADVANTAGES)
    with pytest.raises(TypeError, match="upper estimate"):
        loss_of(Spg(SpgSection()), VALUES, lengths=LENGTHS, advantages=ADVANTAGES)


def test_advantages_follow_the_section():
    rows = rows_of(torch.zeros(4, 2).long(), torch.zeros(4, 2) > 0, torch.ones(4, 2) > 0)
    verdicts = verdicts_of([1.0, 0.0, 0.5, None])
    given = Espo(EspoSection()).advantages(rows, verdicts)
    torch.testing.assert_close(given.value, torch.tensor([0.75, -0.75, 0.0, 0.0]))
    assert given.usable.tolist() == [True, True, True, False]
    assert Spg(SpgSection()).advantages(rows, verdicts).value.tolist() == pytest.approx([0.5, -0.5, 0.0, 0.0])
    assert Bgpo(BgpoSection()).advantages(rows, verdicts).value.tolist() == pytest.approx([1, -1, 0, 0], abs=1e-5)


@pytest.mark.parametrize("algorithm", [Spg(SpgSection()), Espo(EspoSection()), Bgpo(BgpoSection())])
def test_inner_updates_draw_their_own_views(algorithm):
    assert algorithm.fresh_views
    assert algorithm.inner_updates == {"Spg": 4, "Espo": 8, "Bgpo": 1}[type(algorithm).__name__]
    assert algorithm.uses_old_policy == (type(algorithm) is not Spg)
