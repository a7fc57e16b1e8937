"""Experts are computed once each, on their own tokens, and sums and gradients are those of the plain formula."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.executor.families import FAMILIES

from dare_core.backbones.experts import routed_experts

MIXTURES = [family for family in FAMILIES if "experts" in family.adapter.lora_targets]


def experts(count=5, hidden=6, width=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return SimpleNamespace(
        num_experts=count,
        has_gate=True,
        has_bias=False,
        is_transposed=False,
        act_fn=torch.nn.functional.silu,
        gate_up_proj=torch.randn(count, 2 * width, hidden, generator=generator, dtype=dtype, requires_grad=True),
        down_proj=torch.randn(count, hidden, width, generator=generator, dtype=dtype, requires_grad=True),
    )


def plain(module, states, chosen, weights):
    rows = []
    for state, picks, shares in zip(states, chosen, weights, strict=True):
        total = torch.zeros_like(state)
        for pick, share in zip(picks.tolist(), shares, strict=True):
            gate, up = (module.gate_up_proj[pick] @ state).chunk(2)
            total = total + share * (module.down_proj[pick] @ (torch.nn.functional.silu(gate) * up))
        rows.append(total)
    return torch.stack(rows)


def routed(tokens=9, choices=2, unused=3):
    """States, experts and weights; no token goes to expert ``unused``."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(tokens, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    pool = torch.tensor([expert for expert in range(5) if expert != unused])
    chosen = torch.stack([pool[torch.randperm(len(pool), generator=generator)[:choices]] for _ in range(tokens)])
    weights = torch.rand(tokens, choices, generator=generator, dtype=torch.float64, requires_grad=True)
    return states, chosen, weights


def test_sums_and_gradients_are_those_of_the_plain_formula_and_an_idle_expert_has_none():
    module, (states, chosen, weights) = experts(), routed()
    leaves = (states, weights, module.gate_up_proj, module.down_proj)
    got, want = routed_experts(module, states, chosen, weights), plain(module, states, chosen, weights)
    torch.testing.assert_close(got, want)
    upstream = torch.randn(want.shape, generator=torch.Generator().manual_seed(2), dtype=want.dtype)
    ours = torch.autograd.grad((got * upstream).sum(), leaves)
    theirs = torch.autograd.grad((want * upstream).sum(), leaves)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert not ours[2][3].any()


def test_the_sum_of_a_tokens_experts_runs_in_float32_for_float32_weights():
    module, (states, chosen, weights) = experts(dtype=torch.bfloat16), routed()
    half = states.detach().to(torch.bfloat16)
    got = routed_experts(module, half, chosen, weights.detach().float())
    assert got.dtype == torch.bfloat16
    wide = SimpleNamespace(**vars(module) | {n: getattr(module, n).float() for n in ("gate_up_proj", "down_proj")})
    torch.testing.assert_close(
        got.float(), plain(wide, half.float(), chosen, weights.detach().float()), rtol=0.03, atol=0.03
    )


def test_experts_with_biases_are_refused():
    module, (states, chosen, weights) = experts(), routed()
    module.has_bias = True
    with pytest.raises(ValueError, match="without biases"):
        routed_experts(module, states, chosen, weights)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_the_description_says_how_experts_run_where_there_are_any(family, tmp_path):
    described = family.load(family.write(tmp_path / "model")).describe()
    assert ("experts" in described) == (family in MIXTURES)


@pytest.mark.parametrize("family", [f for f in MIXTURES if not f.stacked_experts], ids=lambda family: family.kind)
@pytest.mark.parametrize("shards", [1, 3])
def test_experts_stacked_on_disk_are_read_and_saved_one_by_one(family, shards, tmp_path):
    source = family.write(tmp_path / "source", shards=shards)
    tensors = {key: tensor for path in source.glob("*.safetensors") for key, tensor in load_file(path).items()}
    for path in [*source.glob("*.safetensors"), *source.glob("*.index.json")]:
        path.unlink()
    stacked, groups = {}, {}
    for key in sorted(tensors, key=lambda key: [int(part) if part.isdigit() else 0 for part in key.split(".")]):
        before, is_expert, after = key.partition(".experts.")
        if is_expert:
            groups.setdefault(f"{before}.experts.{after.split('.')[1]}", []).append(tensors[key])
        else:
            stacked[key] = tensors[key]
    stacked |= {key: torch.stack(one) for key, one in groups.items()}
    assert len(stacked) < len(tensors)
    save_file(stacked, source / "model.safetensors", metadata={"format": "pt"})
    family.load(source).save(tmp_path / "copy")
    saved = load_file(tmp_path / "copy" / "model.safetensors")
    assert saved.keys() == tensors.keys()
    assert all(torch.equal(saved[key], tensor) for key, tensor in tensors.items())
