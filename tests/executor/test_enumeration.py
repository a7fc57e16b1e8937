"""Exact quantities: their forms agree, and they equal a calculation by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tests.executor.decoding import scripted, single_row

from dare_core.testing.enumeration import (
    exact_elbo,
    exact_elbo_by_orders,
    log_mean_over_orders,
    order_logps,
    subset_table,
    token_elbo,
)
from dare_core.testing.toy_models import ToyBlock, ToyMasked

ROW = single_row([0, 2, 1, 2, 0, 1], prompt=2, padding=2, pad_id=3)


@pytest.mark.parametrize("toy", [ToyMasked(5, 8, 4), ToyBlock(5, 8, 4, block_length=3)])
def test_subset_form_and_order_form_of_the_elbo_are_equal(toy: ToyMasked) -> None:
    elbo = exact_elbo(toy, ROW)
    torch.testing.assert_close(elbo, exact_elbo_by_orders(toy, ROW))
    assert log_mean_over_orders(toy, ROW) > elbo
    shares = token_elbo(toy, ROW)
    torch.testing.assert_close(shares.sum(), elbo)
    assert (shares[:2] == 0).all()
    assert (shares[6:] == 0).all()


def test_without_context_every_order_has_the_product_of_the_marginals() -> None:
    toy = scripted([[0.0, 1.0, 2.0]] * 4)
    row = single_row([0, 1, 2, 0], prompt=1)
    wanted = sum(math.log(math.exp(t) / (1 + math.e + math.e**2)) for t in (1, 2, 0))
    assert exact_elbo(toy, row).item() == pytest.approx(wanted)
    assert log_mean_over_orders(toy, row).item() == pytest.approx(wanted)
    assert token_elbo(toy, row)[1].item() == pytest.approx(math.log(math.e / (1 + math.e + math.e**2)))


def test_one_token_has_its_log_probability_as_elbo() -> None:
    toy = ToyMasked(5, 8, 4)
    row = single_row([0, 2, 1], prompt=2)
    table = subset_table(toy, row)
    assert table.masked.tolist() == [[True]]
    torch.testing.assert_close(exact_elbo(toy, row), table.logp[0, 0])


def test_block_models_take_orders_within_blocks_only() -> None:
    toy = ToyBlock(5, 8, 4, block_length=3)
    orders = [order for order, _ in order_logps(toy, ROW)]
    assert orders == [(0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 1, 3), (0, 2, 3, 1), (0, 3, 1, 2), (0, 3, 2, 1)]


def test_the_elbo_is_differentiable() -> None:
    toy = ToyMasked(5, 8, 4)
    exact_elbo(toy, ROW).backward()
    assert toy.module.bias.grad.abs().sum() > 0


def test_long_responses_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 10 response tokens, not 11"):
        exact_elbo(ToyMasked(5, 12, 0), single_row([0] * 12, prompt=1))
