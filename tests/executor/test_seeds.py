"""Addressed random numbers."""

from __future__ import annotations

import torch

from dare_core.diffusion.draws import AddressedDraws, Places
from dare_core.diffusion.seeds import batch_uniforms, permutations, uniforms
from dare_core.types import Address

ADDRESS = Address(seed=1, purpose="corruption", step=4)
SAMPLES = torch.arange(64)


def test_numbers_lie_strictly_between_zero_and_one() -> None:
    numbers = uniforms(ADDRESS, torch.arange(2000), 0, 50)
    assert numbers.min() > 0
    assert numbers.max() < 1


def test_permuting_samples_permutes_numbers() -> None:
    order = torch.tensor([5, 0, 63, 17])
    assert torch.equal(uniforms(ADDRESS, SAMPLES[order], 3, 9), uniforms(ADDRESS, SAMPLES, 3, 9)[order])


def test_a_wider_row_starts_with_the_same_numbers() -> None:
    assert torch.equal(uniforms(ADDRESS, SAMPLES, 0, 20)[:, :7], uniforms(ADDRESS, SAMPLES, 0, 7))


def test_seed_purpose_step_sample_and_draw_each_change_the_numbers() -> None:
    base = uniforms(ADDRESS, SAMPLES, 0, 8)
    others = [
        uniforms(Address(2, "corruption", 4), SAMPLES, 0, 8),
        uniforms(Address(1, "rollout", 4), SAMPLES, 0, 8),
        uniforms(Address(1, "corruption", 5), SAMPLES, 0, 8),
        uniforms(ADDRESS, SAMPLES + 1000, 0, 8),
        uniforms(ADDRESS, SAMPLES, 1, 8),
    ]
    for other in others:
        assert not (base == other).any()


def test_numbers_are_uniform_and_independent_along_every_part_of_the_address() -> None:
    by_sample = uniforms(ADDRESS, torch.arange(40000), 0, 1)[:, 0]
    by_draw = uniforms(ADDRESS, torch.zeros(40000, dtype=torch.int64), torch.arange(40000), 1)[:, 0]
    by_position = batch_uniforms(ADDRESS, 40000)
    for numbers in (by_sample, by_draw, by_position):
        counts = torch.histc(numbers, bins=20, min=0, max=1)
        # chi-square with 19 degrees of freedom: 1 in 10^5 above 56
        assert ((counts - 2000) ** 2 / 2000).sum() < 56
        assert abs(torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1]) < 0.025


def test_permutations_hold_every_position_once_and_each_order_is_as_likely() -> None:
    orders = permutations(ADDRESS, torch.arange(6000), 0, 3)
    assert (orders.sort(dim=1).values == torch.arange(3)).all()
    counts = (orders * torch.tensor([9, 3, 1])).sum(dim=1).unique(return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 31  # 5 degrees of freedom


def test_decoding_draws_do_not_depend_on_the_batch() -> None:
    draws = AddressedDraws(ADDRESS)
    places = Places(*(torch.tensor(x) for x in ([0, 0, 1, 2], [7, 7, 9, 7], [0, 1, 0, 1], [3, 3, 2, 3])))
    numbers = draws.token(places)
    assert numbers[1] == numbers[3], "same sample, forward and offset in another row"
    assert numbers.unique().numel() == 3
    assert torch.equal(draws.gumbel(places[1:2], 5), draws.gumbel(places, 5)[1:2])
    assert torch.equal(draws.gumbel(places, 9)[:, :5], draws.gumbel(places, 5))
    assert not (draws.selection(places) == numbers).any()
