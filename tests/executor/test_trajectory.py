"""Canvases from commit steps."""

from __future__ import annotations

import torch

from dare_core.diffusion.trajectory import block_local, from_block_local, state_before, states

MASK = 9
TOKENS = torch.tensor([[1, 2, 3, 4, 5], [1, 6, 7, 0, 0]])
STEPS = torch.tensor([[-1, -1, 1, 0, 1], [-1, 0, -1, -1, -1]])
RESPONSE = torch.tensor([[False, False, True, True, True], [False, True, True, False, False]])


def test_states_hide_what_was_not_committed_yet() -> None:
    got = states(TOKENS, STEPS, RESPONSE, MASK)
    assert got[0].tolist() == [[1, 2, MASK, MASK, MASK], [1, 2, MASK, 4, MASK], [1, 2, 3, 4, 5]]
    assert got[1].tolist() == [[1, MASK, MASK, 0, 0], [1, 6, MASK, 0, 0], [1, 6, MASK, 0, 0]], "never committed: masked"


def test_each_row_may_be_asked_for_its_own_step() -> None:
    got = state_before(TOKENS, STEPS, RESPONSE, torch.tensor([1, 0]), MASK)
    assert got.tolist() == [[1, 2, MASK, 4, MASK], [1, MASK, MASK, 0, 0]]


def test_block_local_steps_start_at_zero_in_each_block_and_convert_back() -> None:
    steps = torch.tensor([[-1, 1, 0, 2, 4, 3, 5, -1], [-1, 0, 0, 1, 1, 2, 3, -1]])
    blocks = torch.tensor([[0, 0, 0, 1, 1, 1, 2, -1], [0, 0, 0, 1, 1, 1, 2, -1]])
    local = block_local(steps, blocks)
    assert local.tolist() == [[-1, 1, 0, 0, 2, 1, 0, -1], [-1, 0, 0, 0, 0, 1, 0, -1]]
    assert torch.equal(from_block_local(local, blocks), steps)
