"""What every adapter promises, checked on each family that is built."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tests.executor.families import BLOCK_FAMILIES, FAMILIES
from torch import nn

from dare_core.backbones.reading import _is_stack
from dare_core.catalog import Catalog
from dare_core.diffusion.layouts import block_index
from dare_core.types import AttentionLayout, Views

#: all of a canvas is read at every forward, so that there is nothing to leave out
WHOLE_LAST_LAYER = ("diffusion-gemma",)
LENGTHS = (9, 5, 1, 9, 14)
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
block_families = pytest.mark.parametrize("family", BLOCK_FAMILIES, ids=lambda family: family.kind)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Kind -> a tiny checkpoint, written once."""
    written = {}

    def folder(family):
        if family.kind not in written:
            path = tmp_path_factory.mktemp(family.kind) / "model"
            written[family.kind] = family.write(path, **family.spread)
        return written[family.kind]

    return folder


def make_views(facts, lengths=LENGTHS, width=16, seed=0, layout=None):
    """Rows of given lengths at random offsets; about half of their tokens but the first are hidden and scored."""
    generator = torch.Generator().manual_seed(seed)
    count = len(lengths)
    clean = torch.randint(0, 256, (count, width), generator=generator)
    valid = torch.zeros(count, width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        start = int(torch.randint(0, width - length + 1, (1,), generator=generator))
        valid[row, start : start + length] = True
    scored = valid & (torch.rand(count, width, generator=generator) < 0.5) & (valid.cumsum(dim=1) > 1)
    return Views(
        inputs=torch.where(scored, hidden_tokens(facts, clean, seed), clean),
        targets=clean,
        valid=valid,
        scored=scored,
        weight=scored.float(),
        row=torch.arange(count),
        draw=torch.zeros(count, dtype=torch.int64),
        prompt_length=torch.tensor([min(length, 3) for length in lengths]),
        layout=layout or facts.layout,
    )


def hidden_tokens(facts, clean, seed=0):
    """What hidden positions hold: the mask token, or random tokens."""
    if facts.noise == "mask":
        return torch.full_like(clean, facts.mask_id)
    return torch.randint(0, facts.vocab_size, clean.shape, generator=torch.Generator().manual_seed(seed + 1))


def all_logits(adapter, tokens, valid, layout=None):
    """[B,L,V] logits, zero at padding."""
    prompt = torch.zeros(len(tokens), dtype=torch.int64)
    with torch.no_grad():
        picked = adapter.logits(tokens, valid, valid, layout=layout or adapter.facts.layout, prompt_length=prompt)
    full = torch.zeros(*tokens.shape, picked.shape[1])
    full[valid] = picked
    return full


class _Probe(nn.Module):
    """States that put all mass on ``input id + shift`` at every position."""

    def __init__(self, shift, size):
        super().__init__()
        self.shift, self.size = shift, size

    def __call__(self, input_ids, **_):
        states = nn.functional.one_hot((input_ids + self.shift) % self.size, self.size).float() * 50
        return SimpleNamespace(last_hidden_state=states)


@every_family
def test_aligned_argmax_at_a_position_is_the_token_there(family, folders):
    """Tokens are their own positions; raw states at i predict i + 1 in shifted families, else i."""
    adapter = family.load(folders(family))
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


@every_family
def test_where_padding_stands_and_what_it_holds_changes_nothing(family, folders):
    adapter = family.load(folders(family))
    views = make_views(adapter.facts)
    scores = adapter.token_logp(views).logp
    columns = torch.tensor([0, 1, 2, 3, 7, 8, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20])
    spread = {}
    for name in ("inputs", "targets", "valid", "scored", "weight"):
        narrow = getattr(views, name)
        spread[name] = narrow.new_zeros(len(narrow), 22).index_copy(1, columns, narrow)
    spread["inputs"] = spread["inputs"].where(spread["valid"], 77)
    spread["targets"] = spread["targets"].where(spread["valid"], 78)
    got = adapter.token_logp(replace(views, **spread)).logp
    assert torch.equal(got[:, columns], scores)


@every_family
def test_a_row_does_not_depend_on_its_neighbours_in_the_pack(family, folders):
    adapter = family.load(folders(family))
    views = make_views(adapter.facts)
    together = adapter.token_logp(views).logp
    for row in range(len(views)):
        alone = adapter.token_logp(views.take(torch.tensor([row]))).logp[0]
        torch.testing.assert_close(alone, together[row], rtol=1e-5, atol=1e-5)


@every_family
def test_logits_of_a_row_do_not_depend_on_padding_or_neighbours(family, folders):
    adapter = family.load(folders(family))
    views = make_views(adapter.facts)
    together = all_logits(adapter, views.inputs, views.valid)
    for row, length in enumerate(LENGTHS):
        tokens = views.inputs[row, views.valid[row]][None]
        alone = all_logits(adapter, tokens, torch.ones(1, length, dtype=torch.bool))[0]
        torch.testing.assert_close(together[row, views.valid[row]], alone, rtol=1e-4, atol=2e-4)


@every_family
def test_masked_families_see_everything_and_block_families_no_later_block(family, folders):
    adapter = family.load(folders(family))
    tokens = torch.arange(11)[None]
    other = tokens.clone()
    other[0, 8:] = 99
    valid = torch.ones(1, 11, dtype=torch.bool)
    before, after = all_logits(adapter, tokens, valid), all_logits(adapter, other, valid)
    # How many tokens share an expert moves its matrix products by rounding; an effect is far larger.
    differs = ~torch.isclose(before, after, rtol=1e-5, atol=1e-5).all(dim=-1)[0]
    is_block = adapter.facts.diffusion == "block"
    assert differs.tolist() == [not is_block] * 8 + [True] * 3


@every_family
def test_a_layout_that_the_family_was_not_trained_with_is_refused(family, folders):
    adapter = family.load(folders(family))
    wrong = AttentionLayout() if adapter.facts.diffusion == "block" else AttentionLayout("block", 4)
    with pytest.raises(ValueError, match=f"layouts, not '{wrong.kind}'"):
        adapter.token_logp(make_views(adapter.facts, layout=wrong))


@block_families
def test_finished_blocks_attend_as_the_family_was_trained_with(family, folders):
    adapter = family.load(folders(family))
    own = adapter.facts.layout
    wrong = replace(own, finished="block" if own.finished == "causal" else "causal")
    with pytest.raises(ValueError, match=f"attend by '{own.finished}', not '{wrong.finished}'"):
        adapter.token_logp(make_views(adapter.facts, layout=wrong))


@every_family
def test_scores_of_the_last_block_and_their_gradient_are_those_of_plain_logits(family, folders):
    """Masked families have one block; in block families earlier blocks stand clean on the canvas."""
    adapter = family.load(folders(family), torch.float64)
    views = make_views(adapter.facts, lengths=(7, 7, 6))
    blocks = block_index(views.valid, views.prompt_length, views.layout)
    last = blocks == blocks.amax(dim=1, keepdim=True)
    scored = views.scored & last
    views = replace(views, scored=scored, inputs=views.inputs.where(last, views.targets), weight=scored.float())
    assert scored.any()
    parameters = list(adapter.module.parameters())
    logp = adapter.token_logp(views).logp
    logits = adapter.logits(
        views.inputs, views.valid, views.scored, layout=views.layout, prompt_length=views.prompt_length
    )
    want = logits.log_softmax(dim=-1).gather(1, views.targets[scored][:, None])[:, 0]
    torch.testing.assert_close(logp[scored], want)
    upstream = torch.rand(want.shape, generator=torch.Generator().manual_seed(1), dtype=want.dtype)
    got = torch.autograd.grad((logp[scored] * upstream).sum(), parameters, allow_unused=True)
    expected = torch.autograd.grad((want * upstream).sum(), parameters, allow_unused=True)
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@block_families
@pytest.mark.parametrize("origin", ["global", "response"])
def test_two_copy_scores_equal_a_decoding_forward_on_clean_earlier_blocks(family, folders, origin):
    adapter = family.load(folders(family))
    layout = replace(adapter.facts.layout, block_length=4, origin=origin)
    views = make_views(adapter.facts, lengths=(13, 7, 3), seed=5, layout=layout)
    scores = adapter.token_logp(views).logp
    blocks = block_index(views.valid, views.prompt_length, layout)
    assert views.scored.any()
    for row, column in views.scored.nonzero().tolist():
        canvas = torch.where(blocks[row] == blocks[row, column], views.inputs[row], views.targets[row])
        where = torch.zeros_like(views.valid[:1])
        where[0, column] = True
        one = slice(row, row + 1)
        logits = adapter.logits(
            canvas[None], views.valid[one], where, layout=layout, prompt_length=views.prompt_length[one]
        )
        want = logits.log_softmax(dim=-1)[0, views.targets[row, column]]
        torch.testing.assert_close(scores[row, column], want, rtol=1e-4, atol=2e-5)


@block_families
def test_noise_in_one_block_changes_no_score_of_another(family, folders):
    adapter = family.load(folders(family))
    views = make_views(adapter.facts, lengths=(16,))
    scored = torch.zeros(1, 16, dtype=torch.bool)
    scored[0, [5, 6, 10]] = True
    views = replace(views, scored=scored, weight=scored.float(), inputs=views.targets.masked_fill(scored, 255))
    noisier = views.inputs.clone()
    noisier[0, 8:12] = hidden_tokens(adapter.facts, views.targets, seed=3)[0, 8:12]
    before, after = adapter.token_logp(views).logp, adapter.token_logp(replace(views, inputs=noisier)).logp
    torch.testing.assert_close(before[0, :8], after[0, :8], rtol=1e-5, atol=1e-5)
    assert abs(before[0, 10] - after[0, 10]) > 1e-3


@every_family
def test_views_without_a_scored_token_give_zeros_that_can_be_differentiated(family, folders):
    adapter = family.load(folders(family))
    views = make_views(adapter.facts)
    nothing = torch.zeros_like(views.scored)
    scores = adapter.token_logp(replace(views, scored=nothing, weight=nothing.float()))
    assert not scores.logp.any()
    scores.logp.sum().backward()


@every_family
def test_bfloat16_runs_and_stays_near_float32(family, tmp_path):
    folder = family.write(tmp_path / "model")
    views = make_views(family.load(folder).facts)
    half, full = (family.load(folder, dtype).token_logp(views).logp for dtype in (torch.bfloat16, torch.float32))
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=0.05, atol=0.1)


@every_family
def test_a_tiny_config_is_recognised_as_its_own_kind(family, folders):
    adapter = family.load(folders(family))
    assert Catalog.load().detect_model(adapter.published_config) == family.kind == adapter.facts.kind


@every_family
def test_the_description_names_what_was_used(family, folders):
    adapter = family.load(folders(family))
    described = adapter.describe()
    assert described["kind"] == family.kind
    assert described["mask_id"] == adapter.facts.mask_id
    assert described["logits_shift"] == adapter.shift
    held = {part.parameter for parts in adapter.weight_layout(adapter.published_config).values() for part in parts}
    buffers = sum(buffer.numel() for name, buffer in adapter.module.named_buffers() if name in held)
    assert described["parameters"] + buffers == sum(tensor.numel() for _, tensor in adapter.published())


@every_family
def test_states_that_are_read_equal_those_of_the_whole_decoder(family, folders):
    adapter = family.load(folders(family), torch.float64)
    if family.kind not in WHOLE_LAST_LAYER:
        assert _is_stack(adapter.module.model), "else decoding would compute the last layer everywhere"
    tokens, valid = torch.randint(0, 200, (2, 9), generator=torch.Generator().manual_seed(1)), torch.ones(2, 9).bool()
    where, prompt = torch.arange(9)[None].expand(2, -1) % 4 == 2, torch.full((2,), 3)
    shared = {"layout": adapter.facts.layout, "prompt_length": prompt}
    whole = adapter.logits(tokens, valid, where, **shared)
    with torch.no_grad():
        read = adapter.logits(tokens, valid, where, **shared)
    assert whole.requires_grad
    torch.testing.assert_close(read, whole.detach(), rtol=1e-12, atol=1e-12)
