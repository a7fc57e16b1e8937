"""Attention implementations: the same function of the same packed rows, chosen by name, named in the record."""

from __future__ import annotations

import pytest
import torch
from tests.executor.families import BLOCK_FAMILIES, FAMILIES
from tests.executor.test_adapter_properties import make_views
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from dare_core.backbones.attention import sees_block, segment_plan
from dare_core.backbones.flex import flex_plan
from dare_core.backbones.implementations import choose_attention
from dare_core.backbones.varlen import VarlenPlan, runs_of
from dare_core.errors import UserError
from dare_core.types import AttentionLayout

CPU = torch.device("cpu")
LENGTHS = [7, 0, 5, 1, 7, 16]
flex_families = pytest.mark.parametrize("family", [f for f in FAMILIES if f.flex], ids=lambda family: family.kind)


def packed_layouts():
    """What packed rows of LENGTHS may say: nothing, blocks of 3 (the last ones short), two copies."""
    block = torch.cat([torch.arange(size) // 3 for size in LENGTHS])
    noisy_first = [torch.arange(size) % (size // 2 + 1) // 3 for size in LENGTHS]
    copies = [torch.arange(size) < size // 2 + 1 for size in LENGTHS]
    return {
        "full": {},
        "block": {"block": block},
        "two copies": {"block": torch.cat(noisy_first), "noisy": torch.cat(copies)},
    }


every_layout = pytest.mark.parametrize("layout", packed_layouts().values(), ids=packed_layouts().keys())


def heads(dtype=torch.float32):
    """Rotated queries of 4 heads, keys and values of 2."""
    generator = torch.Generator().manual_seed(3)
    sizes = ((4, sum(LENGTHS), 8), (2, sum(LENGTHS), 8), (2, sum(LENGTHS), 8))
    return [torch.randn(1, *size, generator=generator).to(dtype) for size in sizes]


def kernel(query, key, value, query_ends, key_ends, longest_query, longest_key, *, scale, enable_gqa):
    """What the flash kernel computes, run by run."""
    assert enable_gqa
    assert int(query_ends.diff().max()) == longest_query
    assert int(key_ends.diff().max()) == longest_key
    mixed = []
    for run in range(len(query_ends) - 1):
        asked = query[query_ends[run] : query_ends[run + 1]].transpose(0, 1)
        keys, values = (t[key_ends[run] : key_ends[run + 1]].transpose(0, 1) for t in (key, value))
        mixed.append(scaled_dot_product_attention(asked, keys, values, scale=scale, enable_gqa=True).transpose(0, 1))
    return torch.cat(mixed)


@every_layout
def test_flex_attends_as_sdpa(layout):
    query, key, value = heads()
    wanted = segment_plan(LENGTHS, CPU, **layout).attend(nn.Module(), query, key, value, 0.3)
    got = flex_plan(LENGTHS, CPU, **layout).attend(nn.Module(), query, key, value, 0.3)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@every_layout
def test_flash_runs_hold_what_each_token_sees(layout):
    runs = runs_of(LENGTHS, CPU, **layout)
    total = sum(LENGTHS)
    keys = torch.arange(total) if runs.keys is None else runs.keys
    got = torch.zeros(total, total, dtype=torch.bool)
    for run in range(len(runs.query_ends) - 1):
        queries = torch.arange(int(runs.query_ends[run]), int(runs.query_ends[run + 1]))
        got[queries[:, None], keys[runs.key_ends[run] : runs.key_ends[run + 1]]] = True
    segment = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    wanted = segment[:, None] == segment
    if layout:
        pairs = [pair for t in layout.values() for pair in (t[:, None], t)]
        wanted &= sees_block(*pairs)
    assert torch.equal(got, wanted)


@every_layout
def test_flash_attends_as_sdpa_with_the_same_gradients(layout):
    inputs = [t.requires_grad_() for t in heads(torch.bfloat16)]
    flash = VarlenPlan(runs_of(LENGTHS, CPU, **layout), sum(LENGTHS), kernel)
    results = []
    for plan in (segment_plan(LENGTHS, CPU, **layout), flash):
        mixed = plan.attend(nn.Module(), *inputs, 0.3)
        results.append((mixed, *torch.autograd.grad(mixed.square().sum(), inputs)))
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=5e-2)


@flex_families
def test_scores_and_logits_of_flex_are_those_of_sdpa(family, tmp_path):
    folder = family.write(tmp_path / "model", **family.spread)
    plain, flex = family.load(folder), family.load(folder, attention="flex")
    views = make_views(plain.facts)
    with torch.no_grad():
        torch.testing.assert_close(flex.token_logp(views).logp, plain.token_logp(views).logp, rtol=1e-4, atol=1e-4)
        inputs = (views.inputs, views.valid, views.valid)
        asked = {"layout": plain.facts.layout, "prompt_length": views.prompt_length}
        torch.testing.assert_close(flex.logits(*inputs, **asked), plain.logits(*inputs, **asked), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("origin", ["response", "prompt-end"])
def test_flex_counts_blocks_from_the_response_too(origin, tmp_path):
    family = BLOCK_FAMILIES[0]
    folder = family.write(tmp_path / "model", **family.spread)
    plain, flex = family.load(folder), family.load(folder, attention="flex")
    views = make_views(plain.facts, layout=AttentionLayout("block", 4, origin))
    with torch.no_grad():
        torch.testing.assert_close(flex.token_logp(views).logp, plain.token_logp(views).logp, rtol=1e-4, atol=1e-4)


def test_training_with_flex_on_the_cpu_is_refused(tmp_path):
    family = FAMILIES[0]
    adapter = family.load(family.write(tmp_path / "model"), attention="flex")
    with pytest.raises(UserError, match=r"'flex' has no gradient on the CPU[\s\S]*train there with 'sdpa'"):
        adapter.token_logp(make_views(adapter.facts))


def test_flash_without_a_gpu_is_refused_before_weights_are_read(tmp_path):
    family = FAMILIES[0]
    folder = family.write(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"attention 'flash' is not available.*NVIDIA GPUs.*cpu"):
        family.load(folder, attention="flash")


def test_flash_in_float32_is_refused():
    with pytest.raises(UserError, match=r"computes in bfloat16 or float16, and this forward is torch\.float32"):
        VarlenPlan(runs_of(LENGTHS, CPU), sum(LENGTHS), kernel).attend(nn.Module(), *heads(), 0.3)


@pytest.mark.parametrize(("asked", "name"), [("auto", "sdpa"), ("sdpa", "sdpa"), ("flex", "flex")])
def test_the_record_names_the_choice(asked, name, tmp_path):
    family = FAMILIES[0]
    described = family.load(family.write(tmp_path / "model"), attention=asked).describe()
    assert described["attention"].startswith(f"{name} ")
    assert choose_attention(asked, CPU).name == name
