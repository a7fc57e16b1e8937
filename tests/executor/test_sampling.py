"""Filters and draws."""

from __future__ import annotations

import pytest
import torch

from dare_core.diffusion.sampling import categorical, filter_logits, gumbel_scores
from dare_core.diffusion.seeds import uniforms
from dare_core.types import Address

PROBABILITY = torch.tensor([[0.05, 0.5, 0.15, 0.3]], dtype=torch.float64)
LOGITS = PROBABILITY.log()


def kept(**filters: float) -> list[int]:
    return (filter_logits(LOGITS, **filters)[0] > -torch.inf).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.4}, [1]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_p": 0.81}, [1, 2, 3]),
        ({"top_p": 1e-9}, [1]),
        ({"min_p": 0.5}, [1, 3]),
        ({"min_p": 0.99}, [1]),
        ({"top_p": 0.81, "top_k": 2}, [1, 3]),
    ],
)
def test_filters_keep_the_documented_tokens(filters: dict[str, float], expected: list[int]) -> None:
    assert kept(**filters) == expected


def test_equal_logits_at_the_cut_keep_the_lower_id() -> None:
    assert (filter_logits(torch.zeros(1, 4), top_k=2)[0] > -torch.inf).tolist() == [True, True, False, False]


def test_categorical_inverts_the_cumulative_distribution() -> None:
    logits = LOGITS.expand(6, 4)
    uniform = torch.tensor([0.01, 0.049, 0.051, 0.549, 0.551, 0.999999], dtype=torch.float64)
    assert categorical(logits, uniform).tolist() == [0, 0, 1, 1, 2, 3]


def test_categorical_never_draws_an_excluded_token() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]], dtype=torch.float64).expand(4, 5)
    edges = torch.tensor([2.0**-53, 0.5, 0.5 + 2.0**-52, 1 - 2.0**-53], dtype=torch.float64)
    assert set(categorical(logits, edges).tolist()) == {1, 3}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_gumbel_and_categorical_draw_from_the_same_tempered_distribution(temperature: float) -> None:
    count = 20000
    logits, samples = LOGITS.expand(count, 4), torch.arange(count)
    wanted = (LOGITS[0] / temperature).softmax(dim=0)
    noise = uniforms(Address(0, "gumbel"), samples, 0, 4)
    drawn = [
        gumbel_scores(logits, noise, temperature).argmax(dim=1),
        categorical(logits / temperature, uniforms(Address(0, "token"), samples, 0, 1)[:, 0]),
    ]
    for tokens in drawn:
        share = tokens.bincount(minlength=4) / count
        assert (share - wanted).abs().max() < 5 * 0.5 / count**0.5


def test_large_logits_do_not_overflow_gumbel_scores() -> None:
    scores = gumbel_scores(torch.tensor([[1000.0, 999.0]]), torch.tensor([[0.5, 0.5]], dtype=torch.float64), 0.1)
    assert scores.isfinite().all()
    assert scores.argmax() == 0
