"""LLaDA-MoE: facts, routing and the options of the published config, each against the formula written out."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.executor.families import FAMILIES
from tests.executor.test_adapter_properties import make_views

from dare_core.errors import UserError
from dare_core.types import Message
from dare_llada.moe.adapter import LladaMoeAdapter
from dare_llada.moe.config import NOT_READ, LladaMoeSection
from dare_llada.moe.testing import tiny_config, write_llada_moe_checkpoint

WEIGHTS = "model.safetensors"
(FAMILY,) = [family for family in FAMILIES if family.kind == "llada-moe"]
#: every option of the published config that changes what is computed
OPTIONS = {
    "attention_bias": True,
    "clip_qkv": 0.5,
    "moe_layer_freq": [0, 1, 1],
    "moe_router_enable_expert_bias": True,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 24,
}


def write(folder, **keys):
    """A checkpoint with large weights, and random norms and biases."""
    write_llada_moe_checkpoint(folder, initializer_range=0.3, **keys)
    tensors, generator = load_file(folder / WEIGHTS), torch.Generator().manual_seed(1)
    for key, tensor in tensors.items():
        if tensor.dim() == 1:
            tensors[key] = 0.5 + torch.rand(tensor.shape, generator=generator)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def test_ids_that_a_published_config_may_lack_are_the_familys():
    config = {key: value for key, value in tiny_config(vocab_size=157184).items() if not key.endswith("token_id")}
    facts = LladaMoeSection(path="anywhere").facts(config)
    assert (facts.kind, facts.diffusion, facts.layout.kind) == ("llada-moe", "masked", "full")
    assert (facts.mask_id, facts.eos_ids, facts.pad_id) == (156895, (156892,), 156892)
    changed = LladaMoeSection(path="anywhere", mask_id=1, eos_ids=(2, 3), pad_id=4).facts(config)
    assert (changed.mask_id, changed.eos_ids, changed.pad_id) == (1, (2, 3), 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling="),
        ({"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ({"num_experts": None}, "config has no 'num_experts'"),
        ({"moe_layer_freq": [1]}, "must have one entry per layer"),
        ({"moe_layer_freq": [0, 1], "dense_intermediate_size": None}, "no 'dense_intermediate_size'"),
        ({"num_experts_per_tok": 5}, "more than num_experts=4"),
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "no multiple of num_attention_heads=3"),
    ],
)
def test_what_is_not_computed_is_refused_by_key_and_value(changes, message):
    with pytest.raises(ValueError, match=message):
        LladaMoeSection(path="anywhere").facts(tiny_config(**changes))


def test_keys_that_the_published_code_does_not_apply_change_nothing():
    strange = dict.fromkeys(NOT_READ, 3) | {"moe_router_score_function": "sigmoid", "norm_topk_prob": True}
    plain, other = (LladaMoeAdapter.build_module(tiny_config(**keys)) for keys in ({}, strange))
    assert plain.config.to_dict() == other.config.to_dict()


def literal_logits(tensors, config, tokens):
    """[L,V] of one row, written out: no batching, no library."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size, limit = config["hidden_size"] // heads, config["clip_qkv"]

    def norm(x, key):
        return tensors[key] * x / (x.pow(2).mean(dim=-1, keepdim=True) + config["rms_norm_eps"]).sqrt()

    def gated(x, prefix):
        gate, up, down = (tensors[f"{prefix}.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return down @ (torch.nn.functional.silu(gate @ x) * (up @ x))

    def project(x, layer, name, count):
        prefix = f"{layer}self_attn.{name}_proj."
        out = x @ tensors[prefix + "weight"].t() + tensors.get(prefix + "bias", 0.0)
        return out.view(len(x), count, -1)

    def rotate(x):
        half = size // 2
        angle = torch.arange(len(x))[:, None] * config["rope_theta"] ** (-torch.arange(half) / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def attend(x, layer):
        query, key, value = (project(x, layer, n, c) for n, c in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        if config["qk_layernorm"]:
            query, key = norm(query, f"{layer}self_attn.q_norm.weight"), norm(key, f"{layer}self_attn.k_norm.weight")
        if limit is not None:
            query, key, value = (t.clamp(-limit, limit) for t in (query, key, value))
        query, key = rotate(query), rotate(key)
        mixed = []
        for head in range(heads):
            own = head // (heads // kv_heads)
            weights = (query[:, head] @ key[:, own].t() / size**0.5).softmax(dim=-1)
            mixed.append(weights @ value[:, own])
        return project(torch.cat(mixed, dim=-1), layer, "o", 1)[:, 0]

    def mixture(x, layer):
        if f"{layer}mlp.gate.weight" not in tensors:
            return gated(x, f"{layer}mlp")
        chances = (tensors[f"{layer}mlp.gate.weight"] @ x).softmax(dim=0) + tensors.get(f"{layer}mlp.expert_bias", 0.0)
        best = sorted(range(len(chances)), key=lambda e: -float(chances[e]))[: config["num_experts_per_tok"]]
        out = sum(chances[e] * gated(x, f"{layer}mlp.experts.{e}") for e in best)
        shared = f"{layer}shared_expert"
        return out + gated(x, shared) if f"{shared}.up_proj.weight" in tensors else out

    states = tensors["model.embed_tokens.weight"][tokens]
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}."
        states = states + attend(norm(states, f"{layer}input_layernorm.weight"), layer)
        normed = norm(states, f"{layer}post_attention_layernorm.weight")
        states = states + torch.stack([mixture(x, layer) for x in normed])
    return norm(states, "model.norm.weight") @ tensors["lm_head.weight"].t()


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"qk_layernorm": False},
        {"qk_layernorm": False, "clip_qkv": 0.5},
        {"shared_expert_intermediate_size": 24},
        {"moe_router_enable_expert_bias": True},
        OPTIONS,
    ],
    ids=["default", "no-norm", "clipped", "shared", "biased", "all"],
)
def test_logits_are_those_of_the_formula_for_every_option(tmp_path, keys):
    folder = write(tmp_path / "model", **keys)
    adapter, tokens = FAMILY.load(folder), torch.tensor([[7, 258, 30, 258, 91, 4, 258]])
    valid = torch.ones_like(tokens, dtype=torch.bool)
    with torch.no_grad():
        got = adapter.logits(
            tokens, valid, valid, layout=adapter.facts.layout, prompt_length=torch.zeros(1, dtype=torch.int64)
        )
    want = literal_logits(load_file(folder / WEIGHTS), tiny_config(**keys), tokens[0])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_with_every_option_is_saved_as_it_was_and_trains(tmp_path):
    folder = write(tmp_path / "model", **OPTIONS)
    adapter = FAMILY.load(folder)
    adapter.save(tmp_path / "copy")
    want, got = load_file(folder / WEIGHTS), load_file(tmp_path / "copy" / WEIGHTS)
    assert want.keys() == got.keys()
    assert all(torch.equal(got[key], tensor) for key, tensor in want.items())
    assert {"model.layers.1.mlp.expert_bias", "model.layers.2.shared_expert.up_proj.weight"} <= want.keys()
    adapter.token_logp(make_views(adapter.facts)).logp.sum().backward()
    assert all(parameter.grad is not None for parameter in adapter.module.parameters())


def test_chat_needs_the_folders_own_template(tmp_path):
    folder = write_llada_moe_checkpoint(tmp_path / "model")
    assert FAMILY.load(folder).text.render([Message("user", "Hi.")]) == "<|role|>user\nHi.\n<|role|>assistant\n"
    settings = folder / "tokenizer_config.json"
    settings.write_text("{}")
    with pytest.raises(UserError, match="no chat template"):
        FAMILY.load(folder).text.render([Message("user", "Hi.")])
