"""LLaDA2: facts, routing, rotation, tensors and text, each against what the family publishes."""

from __future__ import annotations

import hashlib

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.executor.families import FAMILIES
from tests.executor.test_adapter_properties import make_views

from dare_core.errors import UserError
from dare_core.types import Message, Prompt
from dare_llada2.adapter import Llada2Adapter
from dare_llada2.config import NOT_READ, Llada2Section
from dare_llada2.plugin import dare_detect_model
from dare_llada2.testing import tiny_config, write_llada2_checkpoint

CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"
#: sizes of LLaDA2.0-mini and 2.1-mini
MINI = {
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "n_group": 8,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 20,
    "num_key_value_heads": 4,
    "topk_group": 4,
    "vocab_size": 157184,
}
(FAMILY,) = [family for family in FAMILIES if family.kind == "llada2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint whose routing biases are as large as the differences between probabilities."""
    path = write_llada2_checkpoint(
        tmp_path_factory.mktemp("llada2") / "model", initializer_range=0.3, num_hidden_layers=3
    )
    tensors = load_file(path / WEIGHTS)
    generator = torch.Generator().manual_seed(2)
    for key in tensors:
        if key.endswith("expert_bias"):
            tensors[key] = torch.rand(tensors[key].shape, generator=generator) / 2
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    return path


def published_facts(**changes):
    return Llada2Section(path="anywhere").facts(tiny_config(**changes))


def test_ids_and_block_length_that_the_published_configs_lack_are_the_familys():
    bare = {key: value for key, value in tiny_config(**MINI).items() if not key.endswith("token_id")}
    del bare["block_size"]
    facts = Llada2Section(path="anywhere").facts(bare)
    assert (facts.mask_id, facts.eos_ids, facts.pad_id) == (156895, (156892,), 156892)
    assert (facts.diffusion, facts.layout.kind, facts.layout.block_length) == ("block", "block", 32)
    assert (facts.layout.origin, facts.extra_ids) == ("global", {})


def test_the_section_replaces_every_default():
    section = Llada2Section(path="anywhere", mask_id=5, eos_ids=(6,), pad_id=7, eot_id=8, block_length=16)
    facts = section.facts(tiny_config(**MINI))
    assert (facts.mask_id, facts.eos_ids, facts.pad_id, facts.extra_ids) == (5, (6,), 7, {"eot": 8})
    assert facts.layout.block_length == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; supported: 'silu'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling="),
        ({"use_bias": True}, "use_bias=True"),
        ({"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ({"topk_group": None}, "config has no 'topk_group'"),
        ({"n_group": 3}, "num_experts=8 must be n_group=3 equal groups"),
        ({"n_group": 8, "topk_group": 8}, "equal groups of two or more"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok=5 do not fit into topk_group=2"),
        ({"num_shared_experts": 0}, "num_shared_experts=0"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads=3"),
    ],
)
def test_what_is_not_computed_is_refused_by_key_and_value(changes, message):
    with pytest.raises(ValueError, match=message):
        published_facts(**changes)


def test_keys_that_the_published_code_does_not_read_change_nothing(folder):
    strange = {
        **dict.fromkeys(NOT_READ, False),
        "score_function": "softmax",
        "router_dtype": "bf16",
        "sliding_window": 4,
        "rotary_dim": 2,
    }
    plain, other = (Llada2Adapter.build_module(tiny_config(**keys)) for keys in ({}, strange))
    other.load_state_dict(plain.state_dict())
    assert published_facts(**strange) == published_facts()
    assert plain.config.to_dict() == other.config.to_dict()


@pytest.mark.parametrize(
    "config", [{"model_type": "llada2_moe"}, {"model_type": "x", "architectures": ["LLaDA2MoeModelLM"]}]
)
def test_published_configs_are_recognised(config):
    assert dare_detect_model(config) == "llada2"
    assert dare_detect_model({"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"]}) is None


def literal_mixture(tensors, prefix, state, *, groups, kept, chosen, scaling):
    """One token through one layer of experts, written out by hand."""

    def gated(name, x):
        gate, up, down = (tensors[f"{prefix}{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
        return down @ (torch.nn.functional.silu(gate @ x) * (up @ x))

    chance = [1 / (1 + (-logit).exp()) for logit in tensors[f"{prefix}gate.weight"] @ state]
    biased = [float(one + bias) for one, bias in zip(chance, tensors[f"{prefix}gate.expert_bias"], strict=True)]
    size = len(biased) // groups
    score = [sum(sorted(biased[g * size : (g + 1) * size])[-2:]) for g in range(groups)]
    open_groups = sorted(range(groups), key=lambda g: -score[g])[:kept]
    candidates = [e for g in open_groups for e in range(g * size, (g + 1) * size)]
    experts = sorted(candidates, key=lambda e: -biased[e])[:chosen]
    total = sum(chance[e] for e in experts) if chosen > 1 else 1.0
    routed = sum(chance[e] / total * scaling * gated(f"experts.{e}", state) for e in experts)
    return routed + gated("shared_experts", state), set(experts)


@pytest.mark.parametrize("chosen", [1, 2, 4])
def test_experts_are_chosen_by_biased_group_scores_and_weighted_without_the_bias(folder, chosen):
    config = tiny_config(num_hidden_layers=3, num_experts_per_tok=chosen)
    section = Llada2Section(path=str(folder))
    module = Llada2Adapter.build_module(config)
    module.load_state_dict(Llada2Adapter.load(section, device=CPU, dtype=torch.float32).module.state_dict())
    tensors, block = load_file(folder / WEIGHTS), module.model.layers[2].mlp
    states = torch.randn(40, 32, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        got, picked = block(states[None])[0], block.gate(states)[2]
    unbiased = 0
    for row, state in enumerate(states):
        want, experts = literal_mixture(
            tensors, "model.layers.2.mlp.", state, groups=4, kept=2, chosen=chosen, scaling=2.5
        )
        torch.testing.assert_close(got[row], want, rtol=1e-4, atol=1e-5)
        assert set(picked[row].tolist()) == experts
        chance = (tensors["model.layers.2.mlp.gate.weight"] @ state).sigmoid()
        unbiased += set(chance.topk(chosen).indices.tolist()) == experts
    assert unbiased < len(states)  # the bias and the groups matter in this test


def test_routing_is_in_float32_in_half_precision(folder):
    adapter = FAMILY.load(folder, torch.bfloat16)
    gate = adapter.module.model.layers[1].mlp.gate
    states = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    logits, weights, _ = gate(states)
    assert logits.dtype == weights.dtype == torch.float32
    torch.testing.assert_close(logits, states.float() @ gate.weight.float().t(), rtol=1e-6, atol=1e-6)


def test_only_the_first_half_of_a_head_is_rotated(folder):
    adapter = FAMILY.load(folder)
    attention, rotary = adapter.module.model.layers[1].self_attn, adapter.module.model.rotary_emb
    caught = {}

    class Plan:
        def attend(self, module, query, key, value, scaling):
            caught.update(query=query, key=key, scaling=scaling)
            return query.transpose(1, 2)

    states = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(6))
    place = torch.tensor([[0, 5, 300]])
    attention(states, position_embeddings=rotary(states, place), attention_mask=None, attention_plan=Plan())
    tensors = load_file(folder / WEIGHTS)
    fused = (states[0] @ tensors["model.layers.1.attention.query_key_value.weight"].t()).view(3, 8, 16)
    for name, heads, norm in (("query", fused[:, :4], "query_layernorm"), ("key", fused[:, 4:6], "key_layernorm")):
        scale = tensors[f"model.layers.1.attention.{norm}.weight"]
        want = scale * heads / (heads.pow(2).mean(dim=-1, keepdim=True) + 1e-6).sqrt()
        for token, position in enumerate(place[0].tolist()):
            for j in range(4):
                angle = torch.tensor(position * 600000 ** (-2 * j / 8))
                first, second = want[token, :, j].clone(), want[token, :, j + 4].clone()
                want[token, :, j] = first * angle.cos() - second * angle.sin()
                want[token, :, j + 4] = second * angle.cos() + first * angle.sin()
        torch.testing.assert_close(caught[name][0].transpose(0, 1), want, rtol=1e-4, atol=1e-4)
    assert caught["scaling"] == 16**-0.5


def test_query_key_value_is_split_by_heads_and_joined_again(folder):
    adapter = FAMILY.load(folder)
    fused = load_file(folder / WEIGHTS)["model.layers.0.attention.query_key_value.weight"]
    attention = adapter.module.model.layers[0].self_attn
    assert torch.equal(attention.q_proj.weight, fused[:64])
    assert torch.equal(attention.k_proj.weight, fused[64:96])
    assert torch.equal(attention.v_proj.weight, fused[96:])
    assert torch.equal(dict(adapter.published())["model.layers.0.attention.query_key_value.weight"], fused)


def test_a_bias_of_query_key_value_is_read_where_the_config_has_one(tmp_path):
    path = write_llada2_checkpoint(tmp_path / "model", use_qkv_bias=True)
    tensors = load_file(path / WEIGHTS)
    tensors["model.layers.1.attention.query_key_value.bias"] = torch.arange(128.0)
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    attention = FAMILY.load(path).module.model.layers[1].self_attn
    assert torch.cat([p.bias for p in (attention.q_proj, attention.k_proj, attention.v_proj)]).tolist() == list(
        range(128)
    )


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("own", [torch.bfloat16, torch.float32])
def test_routing_biases_keep_their_stored_dtype_and_bits_and_are_not_trained(folder, tmp_path, stored, own):
    tensors = load_file(folder / WEIGHTS)
    biases = {key: tensor.to(stored) for key, tensor in tensors.items() if key.endswith("expert_bias")}
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file({key: tensor.to(torch.bfloat16) for key, tensor in tensors.items()} | biases, source / WEIGHTS)
    adapter = FAMILY.load(source, own)
    assert not any("bias" in name for name, _ in adapter.module.named_parameters())
    for key, tensor in adapter.published():
        if key in biases:
            assert tensor.dtype == stored
            assert torch.equal(tensor, biases[key])
    adapter.save(tmp_path / "copy")
    saved = load_file(tmp_path / "copy" / WEIGHTS)
    assert len(biases) == 2
    assert all(saved[key].dtype == stored and torch.equal(saved[key], bias) for key, bias in biases.items())


def stack(tensors, experts=8):
    """The stacked form of a folder's tensors."""
    stacked = {key: tensor for key, tensor in tensors.items() if ".experts." not in key}
    for layer in (1, 2):
        for name in ("gate_proj", "up_proj", "down_proj"):
            prefix = f"model.layers.{layer}.mlp.experts."
            stacked[f"{prefix}{name}"] = torch.stack([tensors[f"{prefix}{e}.{name}.weight"] for e in range(experts)])
    return stacked


def test_stacked_experts_are_read_and_saved_one_by_one(folder, tmp_path):
    tensors, source = load_file(folder / WEIGHTS), tmp_path / "stacked"
    source.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (source / name).write_bytes((folder / name).read_bytes())
    save_file(stack(tensors), source / WEIGHTS, metadata={"format": "pt"})
    before = hashlib.sha256((source / WEIGHTS).read_bytes()).hexdigest()
    adapter, published = FAMILY.load(source), FAMILY.load(folder)
    views = make_views(adapter.facts)
    with torch.no_grad():
        assert torch.equal(adapter.token_logp(views).logp, published.token_logp(views).logp)
    adapter.save(tmp_path / "copy")
    assert hashlib.sha256((source / WEIGHTS).read_bytes()).hexdigest() == before
    saved = load_file(tmp_path / "copy" / WEIGHTS)
    assert saved.keys() == tensors.keys()
    assert all(torch.equal(saved[key], tensor) for key, tensor in tensors.items())


def test_a_missing_stack_is_named(folder, tmp_path):
    stacked = stack(load_file(folder / WEIGHTS))
    del stacked["model.layers.2.mlp.experts.up_proj"]
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(stacked, tmp_path / WEIGHTS)
    with pytest.raises(UserError, match=r"missing tensor model\.layers\.2\.mlp\.experts\.up_proj"):
        FAMILY.load(tmp_path)


@pytest.mark.parametrize(("bias", "size"), [(torch.bfloat16, 32_511_286_784), (torch.float32, 32_511_296_512)])
def test_the_released_mini_checkpoints_fit_tensor_by_tensor_and_byte_by_byte(bias, size):
    config = tiny_config(**MINI)
    with torch.device("meta"):
        module = Llada2Adapter.build_module(config).to(torch.bfloat16)
    layout = Llada2Adapter.weight_layout(config)
    assert len(layout) == 14813
    held = dict(module.named_parameters())
    biases = dict(module.named_buffers())
    parts = {part.parameter for entry in layout.values() for part in entry}
    bytes_held = sum(tensor.nbytes for tensor in held.values())
    bytes_held += sum(biases[name].numel() * bias.itemsize for name in parts - held.keys())
    assert held.keys() <= parts
    assert bytes_held == size


SYSTEM = "<role>SYSTEM</role>detailed thinking off<|role_end|>"


def test_a_system_turn_always_comes_first(folder):
    text = FAMILY.load(folder).text
    assert text.render([Message("user", "Hi.")]) == f"{SYSTEM}<role>HUMAN</role>Hi.<|role_end|><role>ASSISTANT</role>"
    turns = [Message("system", "Be kind."), Message("user", "Hi."), Message("assistant", "Yes?"), Message("tool", "4")]
    assert text.render(turns) == (
        "<role>SYSTEM</role>Be kind.\ndetailed thinking off<|role_end|><role>HUMAN</role>Hi.<|role_end|>"
        "<role>ASSISTANT</role>Yes?<|role_end|><role>OBSERVATION</role>4<|role_end|><role>ASSISTANT</role>"
    )


def test_a_late_system_turn_is_refused(folder):
    with pytest.raises(UserError, match="a system turn stands first"):
        FAMILY.load(folder).text.render([Message("user", "Hi."), Message("system", "Be kind.")])


def test_prompt_and_answer_together_are_the_rendered_conversation(folder):
    text = FAMILY.load(folder).text
    turns = (Message("user", "Hi."),)
    ids = [*text.encode_prompt(Prompt("p", 0, messages=turns)), *text.encode_completion("Yes.")]
    whole = text.render([*turns, Message("assistant", "Yes.")]).removesuffix("<role>ASSISTANT</role>")
    assert ids == text.encode_prompt(Prompt("p", 0, text=whole))
    assert text.decode(ids[-6:]) == "Yes."


def test_answers_end_with_end_of_text_where_the_turn_end_is_not_known(folder):
    config = {key: value for key, value in tiny_config().items() if key != "eot_token_id"}
    section = Llada2Section(config=config, init="random", tokenizer=str(folder))
    assert Llada2Adapter.load_text(section).encode_completion("a")[-1] == 257
