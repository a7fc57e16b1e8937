"""CJ-GRPO's decoding: steps of growing size, end tokens that wait."""

from __future__ import annotations

import pytest
import torch
from tests.executor.decoding import decode

from dare_core.diffusion.confidence import log_odds, scaled_confidence, token_confidence
from dare_core.diffusion.schedules import doubling_blocks, end_factor
from dare_core.errors import UserError
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import DecodingSettings, SelectionRule


def protocol(floor: float = 1.0, **options) -> DecodingSettings:
    selection = SelectionRule("low-confidence", {"end_floor": floor})
    return DecodingSettings(
        **{"new_tokens": 18, "block_length": 18, "steps_per_block": 4, **options}, selection=selection
    )


def test_steps_double_and_the_last_takes_the_rest():
    result = decode(ToyMasked(8, 24, 3), [[0, 1], [2]], protocol(schedule="doubling", temperature=1.0))
    for row in result.commit_step:
        assert [int((row == step).sum()) for step in range(4)] == [1, 2, 4, 11]


def test_doubling_needs_as_many_steps_as_a_block_has_doublings():
    with pytest.raises(ValueError, match="a block of 18 tokens in 4 steps, not 5"):
        protocol(schedule="doubling", steps_per_block=5)


@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_blocks_of_the_doubling_schedule_hold_all_positions_and_steps(blocks):
    cut = doubling_blocks(18, blocks)
    assert sum(size for size, _ in cut) == 18
    assert [first for _, first in cut] == sorted({first for _, first in cut})
    with pytest.raises(ValueError, match="cannot be cut into 5 blocks"):
        doubling_blocks(18, 5)


def test_the_factor_grows_from_the_floor_to_one():
    factor = end_factor(0.1, protocol(new_tokens=8, block_length=4, steps_per_block=2), torch.arange(4))
    torch.testing.assert_close(factor, torch.tensor([0.1, 0.4, 0.7, 1.0], dtype=torch.float64))


def test_end_tokens_commit_later_the_lower_the_floor():
    adapter = ToyMasked(6, 24, 3)
    with torch.no_grad():
        adapter.module.bias[:, adapter.facts.eos_ids[0]] += 1.5

    def mean_step(floor: float) -> float:
        result = decode(adapter, [[0, 1], [2], [3, 1, 0]], protocol(floor, steps_per_block=18))
        ends = result.response & (result.tokens == adapter.facts.eos_ids[0])
        return float(result.commit_step[ends].double().mean())

    assert mean_step(0.01) > mean_step(1.0)


def test_a_scaled_confidence_orders_as_the_scaled_probability():
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    token, factor = torch.arange(6) % 5, torch.linspace(0, 1, 6, dtype=torch.float64)
    plain = scaled_confidence(token_confidence(logits, token, "published"), factor, "published")
    exact = scaled_confidence(log_odds(logits, token), factor)
    torch.testing.assert_close(exact.sigmoid(), plain)
    assert torch.equal(exact[-1], log_odds(logits, token)[-1])


def test_a_floor_above_one_is_refused():
    with pytest.raises(UserError, match="end_floor"):
        decode(ToyMasked(6, 24, 3), [[0]], protocol(1.5))
