"""What is particular to SDAR: facts of its configs, blocks, experts, published sizes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tests.executor.published_tokenizers import write_published_tokenizer

from dare_core.types import AttentionLayout
from dare_sdar.adapter import SdarAdapter, SdarMoeAdapter
from dare_sdar.config import SdarMoeSection, SdarSection
from dare_sdar.plugin import dare_detect_model, dare_model_adapters
from dare_sdar.testing import tiny_config, tiny_moe_config, write_sdar_checkpoint, write_sdar_moe_checkpoint

CPU = torch.device("cpu")
#: config.json of SDAR-8B-Chat, as far as it is read
PUBLISHED = {
    "architectures": ["SDARForCausalLM"],
    "model_type": "sdar",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "block_size": 4,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "mask_token_id": 151669,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SIZES = {
    "8B": ({}, 399, 16_381_470_720),
    # Heads times head_dim (4096) is not the hidden size.
    "4B": ({"hidden_size": 2560, "intermediate_size": 9728}, 399, 8_822_848_512),
    "1.7B": (
        {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
        311,
        4_063_479_808,
    ),
}
MOE = {
    key: value for key, value in PUBLISHED.items() if key not in ("block_size", "mask_token_id", "architectures")
} | {
    "model_type": "sdar_moe",
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
}


def section(**options):
    return SdarSection(path="anywhere", **options)


def test_published_facts():
    facts = section().facts(PUBLISHED)
    assert (facts.kind, facts.diffusion, facts.vocab_size, facts.mask_id) == ("sdar", "block", 151936, 151669)
    assert (facts.eos_ids, facts.pad_id, facts.extra_ids) == ((151643, 151645), 151643, {"eot": 151645})
    assert (facts.max_positions, facts.head_rows_unused) == (32768, 151670)
    assert facts.layout == AttentionLayout("block", 4, "global")


def test_what_the_released_mixture_of_experts_lacks_has_the_family_s_value():
    facts = SdarMoeSection(path="anywhere").facts(MOE)
    assert (facts.kind, facts.mask_id, facts.layout.block_length) == ("sdar-moe", 151669, 4)


def test_ids_and_blocks_of_the_section_win():
    facts = section(mask_id=5, eos_ids=(7, 8), block_length=16, block_origin="response").facts(PUBLISHED)
    assert (facts.mask_id, facts.eos_ids) == (5, (7, 8))
    assert facts.layout == AttentionLayout("block", 16, "response")
    assert section().facts(PUBLISHED | {"block_size": 32}).layout.block_length == 32


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("rope_scaling", {"type": "yarn"}),
        ("attention_bias", True),
        ("use_sliding_window", True),
        ("attention_dropout", 0.1),
    ],
)
def test_what_is_not_computed_is_refused_by_key_and_value(key, value):
    with pytest.raises(ValueError, match=f"{key}=.* is not supported; supported: "):
        section().facts(PUBLISHED | {key: value})


def test_a_mixture_of_experts_names_its_routing():
    config = {key: value for key, value in MOE.items() if key not in ("norm_topk_prob", "num_experts")}
    with pytest.raises(ValueError, match="config has no 'num_experts'; config has no 'norm_topk_prob'"):
        SdarMoeSection(path="anywhere").facts(config)


def test_a_small_vocabulary_without_ids_asks_for_them():
    config = {key: value for key, value in tiny_moe_config().items() if key != "mask_token_id"}
    with pytest.raises(ValueError, match="'mask_token_id'; give 'mask_id'"):
        SdarMoeSection(path="anywhere").facts(config)
    assert SdarMoeSection(path="anywhere", mask_id=261).facts(config).mask_id == 261


def test_detection_tells_dense_from_experts():
    assert dare_detect_model({"model_type": "sdar"}) == "sdar"
    assert dare_detect_model({"architectures": ["SDARForCausalLM"]}) == "sdar"
    assert dare_detect_model({"model_type": "sdar_moe"}) == "sdar-moe"
    assert dare_detect_model({"architectures": ["SDARMoeForCausalLM"]}) == "sdar-moe"
    assert dare_detect_model({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}) is None


def test_the_components_are_block_families():
    assert all({"block", "token-logp"} <= component.provides for component in dare_model_adapters())


@pytest.mark.parametrize("size", SIZES)
def test_released_dense_checkpoints_fit_tensor_by_tensor_and_byte_by_byte(size):
    sizes, tensors, total = SIZES[size]
    assert published_size(SdarAdapter, PUBLISHED | sizes) == (tensors, total)


def test_the_released_mixture_of_experts_fits_tensor_by_tensor_and_byte_by_byte():
    assert published_size(SdarMoeAdapter, MOE) == (18867, 61_064_245_248)


def published_size(adapter, config):
    with torch.device("meta"):
        module = adapter.build_module(config).to(torch.bfloat16)
    layout, parameters = adapter.weight_layout(config), dict(module.named_parameters())
    parts = [part for parts in layout.values() for part in parts]
    views = (parameters[part.parameter][part.index] if part.index else parameters[part.parameter] for part in parts)
    return len(layout), sum(view.numel() * view.element_size() for view in views)


def test_experts_are_published_one_by_one_and_stacked_in_memory(tmp_path):
    folder = write_sdar_moe_checkpoint(tmp_path / "model")
    stored = load_file(folder / "model.safetensors")
    assert stored["model.layers.1.mlp.experts.3.up_proj.weight"].shape == (24, 32)
    module = SdarMoeAdapter.load(SdarMoeSection(path=str(folder)), device=CPU, dtype=torch.float32).module
    experts = module.model.layers[1].mlp.experts
    assert torch.equal(experts.gate_up_proj[3, :24], stored["model.layers.1.mlp.experts.3.gate_proj.weight"])
    assert torch.equal(experts.gate_up_proj[3, 24:], stored["model.layers.1.mlp.experts.3.up_proj.weight"])
    assert torch.equal(experts.down_proj[2], stored["model.layers.1.mlp.experts.2.down_proj.weight"])


def test_dense_layers_of_a_mixture_are_those_listed_or_skipped_by_the_step(tmp_path):
    folder = write_sdar_moe_checkpoint(
        tmp_path / "model", num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3]
    )
    keys = load_file(folder / "model.safetensors").keys()
    has_experts = [any(f".{layer}.mlp.experts.0." in key for key in keys) for layer in range(4)]
    assert has_experts == [False, True, False, False]
    SdarMoeAdapter.load(SdarMoeSection(path=str(folder)), device=CPU, dtype=torch.float32)


def test_a_layer_of_experts_is_the_published_formula(tmp_path):
    """Softmax over all experts in float32, the largest k, divided by their sum, weighted sum of expert outputs."""
    folder = write_sdar_moe_checkpoint(tmp_path / "model", initializer_range=0.3)
    module = SdarMoeAdapter.load(SdarMoeSection(path=str(folder)), device=CPU, dtype=torch.float32).module
    tensors = load_file(folder / "model.safetensors")
    states = torch.randn(6, 32, generator=torch.Generator().manual_seed(2))
    key = "model.layers.0.mlp."
    shares, chosen = (states @ tensors[f"{key}gate.weight"].T).softmax(dim=-1).topk(2)
    want = torch.zeros_like(states)
    for row in range(6):
        for share, expert in zip(shares[row] / shares[row].sum(), chosen[row].tolist(), strict=True):
            gate, up, down = (tensors[f"{key}experts.{expert}.{part}_proj.weight"] for part in ("gate", "up", "down"))
            inner = torch.nn.functional.silu(states[row] @ gate.T) * (states[row] @ up.T)
            want[row] += share * (inner @ down.T)
    with torch.no_grad():
        torch.testing.assert_close(module.model.layers[0].mlp(states[None])[0], want)


def test_head_dim_is_not_derived_from_the_hidden_size(tmp_path):
    folder = write_sdar_checkpoint(tmp_path / "model")
    assert tiny_config()["head_dim"] * 4 != tiny_config()["hidden_size"]
    assert load_file(folder / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"].shape == (64, 32)
    with torch.device("meta"):
        module = SdarAdapter.build_module({key: value for key, value in PUBLISHED.items() if key != "head_dim"})
    assert module.model.layers[0].self_attn.q_norm.weight.shape == (128,)


def test_the_published_tokenizer_s_mask_is_addressed_by_id(tmp_path):
    """Its files disagree on the token's text; loading resolves it to the id that the config names."""
    folder = write_published_tokenizer("sdar", tmp_path / "tokenizer")
    codec = SdarAdapter.build_text(section(tokenizer=str(folder)), section().facts(PUBLISHED))
    assert len(codec.tokenizer) == 151670
    assert codec.tokenizer.convert_tokens_to_ids("<|MASK|>") == 151669
