"""DiffusionGemma: facts, decoding beside the library's own, caches, and what uniform noise means for the rest."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma import generation_diffusion_gemma as library

from dare_core.catalog import Catalog
from dare_core.cli.matrix import support_matrix
from dare_core.components import Slot
from dare_core.diffusion.denoise import denoise
from dare_core.errors import UserError
from dare_core.types import Address, DecodingSettings, EosRule, Message, Prompt, SelectionRule
from dare_diffusion_gemma.adapter import DiffusionGemmaAdapter
from dare_diffusion_gemma.config import DiffusionGemmaSection
from dare_diffusion_gemma.testing import tiny_config, write_diffusion_gemma_checkpoint

CPU = torch.device("cpu")
ADDRESS = Address(3, "gemma")
FRESH = {"init": "random", "tokenizer": "."}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Weights large enough for guesses to differ, and small enough that rounding does not grow from step to step."""
    return write_diffusion_gemma_checkpoint(tmp_path_factory.mktemp("gemma") / "model", initializer_range=0.08)


def load(folder, **section):
    chosen = DiffusionGemmaSection(path=str(folder), **section)
    return DiffusionGemmaAdapter.load(chosen, device=CPU, dtype=torch.float32)


def settings(**more):
    options = {"bound": 4.0, "stop_entropy": 0.0} | more.pop("options", {})
    kept = {"new_tokens": 8, "block_length": 4, "steps_per_block": 5, "whole_blocks": True, "eos_rule": EosRule.STOP}
    rule = SelectionRule("entropy-renoise", options)
    return DecodingSettings(**(kept | {"schedule": "anew", "selection": rule} | more))


class Recorded:
    """Numbers that give the recorded random tokens, in order of use."""

    def __init__(self, tokens, vocab_size):
        self.waiting, self.vocab_size = list(tokens), vocab_size

    def start(self, places):
        return (self.waiting.pop(0).flatten().double() + 0.5) / self.vocab_size

    renewed = start


@pytest.mark.parametrize(
    ("more", "published"),
    [
        ({}, {"entropy_bound": 4.0, "stability_threshold": 9, "confidence_threshold": 1e-9}),
        (
            {"options": {"bound": 30.0, "stop_entropy": 5.55, "stable_steps": 0}},
            {"entropy_bound": 30.0, "stability_threshold": 0, "confidence_threshold": 5.55},
        ),
        (
            {"options": {"bound": 30.0, "stop_entropy": 9.0, "stable_steps": 1}, "steps_per_block": 20},
            {"entropy_bound": 30.0, "stability_threshold": 1, "confidence_threshold": 9.0},
        ),
    ],
    ids=["all-steps", "sure", "stable"],
)
def test_decoding_equals_the_librarys_own(folder, monkeypatch, more, published):
    adapter = load(folder)
    protocol = settings(**more)
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(str(folder), dtype=torch.float32)
    generator = torch.Generator().manual_seed(2)
    canvases = torch.randint(0, adapter.facts.vocab_size, (60, 1, 4), generator=generator)
    waiting = list(canvases)
    monkeypatch.setattr(library.EntropyBoundSampler, "initialize_canvas", lambda *_, **__: waiting.pop(0))
    monkeypatch.setattr(torch, "multinomial", lambda share, num_samples: share.argmax(dim=-1, keepdim=True))
    prompt = torch.randint(5, 260, (1, 9), generator=generator)
    theirs = model.generate(
        prompt,
        max_new_tokens=protocol.new_tokens,
        max_denoising_steps=protocol.steps_per_block,
        t_min=0.4,
        t_max=0.8,
        sampler_config=library.EntropyBoundSamplerConfig(published.pop("entropy_bound")),
        eos_token_id=[1, 4],
        pad_token_id=0,
        **published,
    )
    ours = denoise(adapter, list(prompt), protocol, ADDRESS, [0], noise=Recorded(canvases, adapter.facts.vocab_size))
    used = len(canvases) - len(waiting)
    blocks = int(ours.response.sum()) // 4
    assert int(ours.forwards) == used - blocks
    early = int(ours.forwards) < blocks * protocol.steps_per_block
    assert early if more else blocks == 2
    end = (torch.isin(ours.tokens, torch.tensor([1, 4])) & ours.response).long()
    kept = ~ours.response | (end.cumsum(dim=1) - end == 0)
    assert torch.equal(ours.tokens.where(kept, 0), theirs.sequences)


def test_a_row_decodes_alike_alone_in_a_batch_and_without_a_cache(folder):
    adapter = load(folder)
    prompts = [[7, 8, 9, 10, 11, 12, 13], [9], [7, 8, 9, 10, 11, 12, 13], [40] * 12]
    protocol = settings(temperature=1.0, eos_rule=EosRule.FILL, new_tokens=7)
    together = denoise(adapter, prompts, protocol, ADDRESS, range(4), rows_per_batch=3)
    plain = denoise(adapter, prompts, protocol, ADDRESS, range(4), cache=False)
    assert together.cached
    assert not plain.cached
    assert torch.equal(together.tokens, plain.tokens)
    assert (together.tokens[0, 7:15] != together.tokens[2, 7:15]).any(), "samples of one prompt differ"
    for row, prompt in enumerate(prompts):
        alone = denoise(adapter, [prompt], protocol, ADDRESS, [row])
        assert torch.equal(alone.tokens[0], together.tokens[row, : len(prompt) + 8])
    steps = together.commit_step[0, 7:15].tolist()
    assert steps == [4] * 4 + [9] * 4, "a block is decided by its last forward"
    assert together.asked.sum(dim=1).tolist() == [7] * 4


def test_recorded_log_probabilities_are_those_of_the_last_guess(folder):
    adapter, seen = load(folder), []
    condition_on = adapter.condition_on
    adapter.condition_on = lambda logits: seen.append(logits) or condition_on(logits)
    result = denoise(adapter, [[7, 8, 9]], settings(new_tokens=4), ADDRESS, [0])
    last = seen[-1] * (0.4 + 0.4 / 5)
    want = last.log_softmax(dim=-1).gather(1, result.tokens[0, 3:, None])[:, 0]
    torch.testing.assert_close(result.logp[0, 3:].float(), want)


def test_a_windowed_layer_sees_the_window_before_a_canvas_and_no_more(tmp_path):
    """With sliding layers only (the last one is always full, and here sees a constant), far tokens change nothing."""
    folder = write_diffusion_gemma_checkpoint(tmp_path / "model", initializer_range=0.2)
    adapter = load(folder)
    full = adapter.module.model.layers[1].self_attn
    torch.nn.init.zeros_(full.o_proj.weight)
    near, far = torch.arange(20, 38)[None], torch.arange(20, 38)[None]
    far[0, :9] = 99
    near[0, 9] = 99
    valid, where = torch.ones(1, 18, dtype=torch.bool), torch.zeros(1, 18, dtype=torch.bool)
    where[0, 14:] = True

    def logits(row):
        with torch.no_grad():
            return adapter.logits(row, valid, where, layout=adapter.facts.layout, prompt_length=torch.tensor([14]))

    base = logits(torch.arange(20, 38)[None])
    # One sliding layer with a window of 6: the canvas sees the five tokens 9..13 before it.
    torch.testing.assert_close(logits(far), base, rtol=1e-5, atol=1e-5)
    assert (logits(near) - base).abs().max() > 1e-3


def test_facts_come_from_the_published_config_and_the_samplers_end_ids(tmp_path):
    published = tiny_config()
    facts = DiffusionGemmaSection(config=published, **FRESH).facts(published)
    assert (facts.mask_id, facts.noise, facts.eos_ids, facts.pad_id) == (None, "uniform", (1, 4), 0)
    assert (facts.layout.block_length, facts.layout.origin, facts.layout.finished) == (4, "response", "causal")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 106, 50]}))
    assert DiffusionGemmaSection(path=str(tmp_path)).facts(published).eos_ids == (1, 106, 50, 4)
    del published["canvas_length"], published["eot_token_id"]
    facts = DiffusionGemmaSection(config=published, **FRESH).facts(published)
    assert (facts.layout.block_length, facts.eos_ids, facts.extra_ids) == (256, (1,), {})


@pytest.mark.parametrize(
    ("change", "section", "words"),
    [
        ({"use_bidirectional_attention": "all"}, {}, "use_bidirectional_attention='all'"),
        ({"hidden_activation": "silu"}, {}, "hidden_activation='silu'"),
        ({"num_experts": None}, {}, "config has no 'num_experts'"),
        ({}, {"mask_id": 3}, "no mask token"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(change, section, words):
    published = tiny_config(**change)
    with pytest.raises(ValueError, match=words):
        DiffusionGemmaSection(config=published, **FRESH, **section).facts(published)


def test_other_attention_and_masked_decoding_are_refused(folder):
    with pytest.raises(UserError, match="'flex' is not available for this family"):
        load(folder, attention="flex")
    adapter = load(folder)
    with pytest.raises(UserError, match="'low-confidence' is for models of mask noise"):
        denoise(adapter, [[7]], DecodingSettings(new_tokens=4, block_length=4, steps_per_block=4), ADDRESS, [0])
    with pytest.raises(UserError, match="not available for models without a mask token"):
        denoise(adapter, [[7]], settings(guidance=1.0), ADDRESS, [0])
    with pytest.raises(UserError, match="snapshots"):
        denoise(adapter, [[7]], settings(), ADDRESS, [0], snapshots=True)


def test_the_matrix_offers_what_needs_no_mask_token_and_names_what_is_missing():
    catalog = Catalog.load()
    cells = [cell for cell in support_matrix(catalog, Slot.MODEL) if cell.other == "diffusion-gemma"]
    assert {cell.algorithm for cell in cells if cell.works} == {"sft", "dpo"}
    assert all("mask-token" in cell.missing for cell in cells if not cell.works)


def test_text_writes_the_turn_markers_and_returns_none_of_them(folder):
    text = load(folder).text
    prompt = text.encode_prompt(Prompt(id="p", index=0, messages=(Message("user", "hi"),)))
    assert prompt[:2] == [2, 3]
    assert prompt.count(3) == 2, "the answer's header is open"
    ids = text.encode_completion("fine")
    assert ids[-1] == 4
    assert text.decode([2, 3, *ids, 1, 0]) == "fine"
