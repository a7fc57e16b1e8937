"""Packing and attention segments: padding is not computed, neighbours are not seen, shifts stay within rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dare_core.backbones.attention import segment_plan
from dare_core.backbones.packing import pack_rows
from dare_core.types import AttentionLayout


def test_a_shifted_row_never_reads_its_neighbour_in_the_pack():
    valid = torch.ones(2, 3, dtype=torch.bool)
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    packed = pack_rows(tokens, valid, valid, AttentionLayout(), torch.zeros(2, dtype=torch.int64), shift=1)
    assert packed.read.tolist() == [0, 0, 1, 3, 3, 4]


def test_scoring_positions_outside_the_row_is_an_error():
    valid = torch.tensor([[True, False]])
    with pytest.raises(ValueError, match="must be valid"):
        pack_rows(valid.long(), valid, ~valid, AttentionLayout(), torch.tensor([0]))


def test_padding_is_not_computed():
    valid = torch.tensor([[False, True, True], [True, False, True]])
    packed = pack_rows(torch.arange(6).view(2, 3), valid, valid, AttentionLayout(), torch.tensor([0, 0]))
    assert packed.tokens.tolist() == [1, 2, 3, 5]
    assert packed.positions.tolist() == [0, 1, 0, 1]


def test_segments_attend_only_within_themselves():
    generator = torch.Generator().manual_seed(1)
    lengths = [3, 5, 3, 0, 1]
    query, key, value = (torch.randn(1, 4, 12, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    got = segment_plan(lengths, torch.device("cpu")).attend(nn.Module(), query, key[:, :2], value[:, :2], 0.3)
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        wide_key, wide_value = (t[:, :2, part].repeat_interleave(2, dim=1) for t in (key, value))
        weights = (query[:, :, part] @ wide_key.transpose(2, 3) * 0.3).softmax(dim=-1)
        torch.testing.assert_close(got[:, part], (weights @ wide_value).transpose(1, 2))
        start += length
