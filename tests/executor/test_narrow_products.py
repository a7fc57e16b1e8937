"""Linear maps of few rows, turned around on a processor, are the same maps."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from dare_core.backbones.narrow import LEAST_ROWS, MOST_ROWS, narrow_products


@pytest.mark.parametrize("rows", [1, LEAST_ROWS, 32, MOST_ROWS, MOST_ROWS + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_map_without_bias_is_the_same_map(rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(24, 16, generator=generator).to(dtype)
    states = torch.randn(1, rows, 16, generator=generator).to(dtype)
    with torch.no_grad(), narrow_products(torch.zeros(rows), weight):
        found = linear(states, weight)
        biased = linear(states, weight, weight[:, 0])
    assert found.is_contiguous()
    torch.testing.assert_close(found, linear(states, weight))
    torch.testing.assert_close(biased, linear(states, weight, weight[:, 0]))


def test_with_gradient_nothing_is_turned() -> None:
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with narrow_products(torch.zeros(MOST_ROWS), weight):
        mapped = linear(torch.ones(MOST_ROWS, 4), weight)
    mapped.sum().backward()
    assert torch.equal(weight.grad, torch.full((4, 4), float(MOST_ROWS)))
