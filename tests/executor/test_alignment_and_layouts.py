"""The shared adapter base serves shifted families and block layouts: published numbers, and what they imply."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tests.executor.families import GOLDENS, DreamLike, SdarLike, load_golden
from torch import nn

from dare_core.backbones.attention import segment_plan
from dare_core.backbones.packing import pack_rows
from dare_core.diffusion.layouts import block_index
from dare_core.types import AttentionLayout, Views

CASES = ("logits_unpadded", "logits_left_pad", "logits_right_pad")


def all_logits(adapter, tokens, valid):
    with torch.no_grad():
        picked = adapter.logits(
            tokens, valid, valid, layout=adapter.facts.layout, prompt_length=torch.zeros(len(tokens), dtype=torch.int64)
        )
    full = torch.zeros(*tokens.shape, picked.shape[1])
    full[valid] = picked
    return full


def golden_rows(family, case):
    tensors = load_file(GOLDENS / family / case / "tensors.safetensors")
    tokens = tensors["input_ids"]
    return tensors, tokens, tensors.get("attention_mask", torch.ones_like(tokens)).bool()


@pytest.mark.parametrize("case", CASES)
def test_shifted_logits_stand_at_the_token_they_predict(case):
    tensors, tokens, valid = golden_rows("dream", case)
    got = all_logits(load_golden(DreamLike, "dream"), tokens, valid)
    for row in range(len(tokens)):
        raw = tensors["logits"][row][valid[row]]
        want = torch.cat([raw[:1], raw[:-1]])
        torch.testing.assert_close(got[row][valid[row]], want, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("case", CASES)
def test_block_causal_logits_are_the_published_ones_wherever_padding_stands(case):
    tensors, tokens, valid = golden_rows("sdar", case)
    got = all_logits(load_golden(SdarLike, "sdar"), tokens, valid)
    want = tensors.get("logits_block_causal", tensors.get("logits"))
    torch.testing.assert_close(got[valid], want[valid], rtol=1e-4, atol=2e-4)


def test_two_copy_scores_are_the_published_ones():
    tensors = load_file(GOLDENS / "sdar" / "logits_train_2l" / "tensors.safetensors")
    adapter = load_golden(SdarLike, "sdar")
    noisy, clean = tensors["noisy"], tensors["clean"]
    scores = adapter.token_logp(block_views(noisy, clean, noisy == adapter.facts.mask_id, adapter.facts.layout))
    want = tensors["logits"][:, : noisy.shape[1]].log_softmax(dim=-1).gather(2, clean[:, :, None])[:, :, 0]
    scored = noisy == adapter.facts.mask_id
    torch.testing.assert_close(scores.logp[scored], want[scored], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("origin", ["global", "response"])
def test_two_copy_scores_equal_a_decoding_forward_on_clean_earlier_blocks(origin):
    adapter = load_golden(SdarLike, "sdar")
    layout = AttentionLayout("block", 4, origin)
    generator = torch.Generator().manual_seed(5)
    clean = torch.randint(0, 249, (2, 15), generator=generator)
    valid = torch.ones(2, 15, dtype=torch.bool)
    valid[0, :2], valid[1, 13:] = False, False
    scored = valid & (torch.rand(2, 15, generator=generator) < 0.5)
    scored[:, :5] = False
    noisy = torch.where(scored, 250, clean)
    prompt = torch.tensor([3, 5])
    views = replace(block_views(noisy, clean, scored, layout), valid=valid, prompt_length=prompt)
    scores = adapter.token_logp(views)
    blocks = block_index(valid, prompt, layout)
    for row, column in scored.nonzero().tolist():
        canvas = torch.where(blocks[row] == blocks[row, column], noisy[row], clean[row])
        where = torch.zeros(1, 15, dtype=torch.bool)
        where[0, column] = True
        logits = adapter.logits(
            canvas[None], valid[row : row + 1], where, layout=layout, prompt_length=prompt[row : row + 1]
        )
        want = logits.log_softmax(dim=-1)[0, clean[row, column]]
        torch.testing.assert_close(scores.logp[row, column], want, rtol=1e-4, atol=1e-5)


def test_tokens_after_a_block_do_not_change_it():
    adapter = load_golden(SdarLike, "sdar")
    tokens = torch.arange(12)[None]
    other = tokens.clone()
    other[0, 8:] = 99
    valid = torch.ones(1, 12, dtype=torch.bool)
    before, after = all_logits(adapter, tokens, valid), all_logits(adapter, other, valid)
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.equal(before[:, 8:], after[:, 8:])


def test_a_layout_that_the_family_was_not_trained_with_is_refused():
    adapter = load_golden(SdarLike, "sdar")
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    valid = torch.ones(1, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="'block' layouts, not 'full'"):
        adapter.logits(tokens, valid, valid, layout=AttentionLayout(), prompt_length=torch.tensor([0]))


class _Probe(nn.Module):
    """States that put all mass on ``input id + shift`` at every position."""

    def __init__(self, shift, size):
        super().__init__()
        self.shift, self.size = shift, size

    def __call__(self, input_ids, **_):
        states = nn.functional.one_hot((input_ids + self.shift) % self.size, self.size).float() * 50
        return SimpleNamespace(last_hidden_state=states)


@pytest.mark.parametrize(("adapter_class", "family"), [(DreamLike, "dream"), (SdarLike, "sdar")])
def test_aligned_argmax_at_a_position_is_the_token_there(adapter_class, family):
    """Tokens are their own positions; raw states at i predict i + 1 in shifted families, else i."""
    adapter = load_golden(adapter_class, family)
    size = adapter.facts.vocab_size
    head = nn.Linear(size, size, bias=False)
    head.weight.data = torch.eye(size)
    adapter.module = nn.Module()
    adapter.module.model, adapter.module.lm_head = _Probe(adapter.shift, size), head
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[0, :3] = False
    tokens = torch.where(valid, valid.long().cumsum(dim=1) - 1, 0)
    best = all_logits(adapter, tokens, valid).argmax(dim=-1)
    inner = valid & (tokens >= 1)
    assert torch.equal(best[inner], tokens[inner])


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


def block_views(noisy, clean, scored, layout):
    count = len(noisy)
    return Views(
        inputs=noisy,
        targets=clean,
        valid=torch.ones_like(scored),
        scored=scored,
        weight=scored.float(),
        row=torch.arange(count),
        draw=torch.zeros(count, dtype=torch.int64),
        prompt_length=torch.zeros(count, dtype=torch.int64),
        layout=layout,
    )
