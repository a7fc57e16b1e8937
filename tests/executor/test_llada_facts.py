"""What a LLaDA config.json says, and which architectures are refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from dare_llada.config import LladaSection
from dare_llada.plugin import dare_detect_model, dare_model_adapters
from dare_llada.testing import tiny_config

#: config.json of LLaDA-8B, as far as facts need it
PUBLISHED = {
    "architectures": ["LLaDAModelLM"],
    "model_type": "llada",
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "mlp_hidden_size": 12288,
    "activation_type": "silu",
    "block_type": "llama",
    "layer_norm_type": "rms",
    "rope": True,
    "max_sequence_length": 4096,
    "vocab_size": 126464,
    "embedding_size": 126464,
    "weight_tying": False,
    "mask_token_id": 126336,
    "eos_token_id": 126081,
    "pad_token_id": 126081,
}


def section(**options):
    return LladaSection(path="anywhere", **options)


def test_published_facts():
    facts = section().facts(PUBLISHED)
    assert (facts.kind, facts.diffusion, facts.vocab_size, facts.mask_id) == ("llada", "masked", 126464, 126336)
    assert (facts.eos_ids, facts.pad_id, facts.extra_ids) == ((126081, 126348), 126081, {"eot": 126348})
    assert (facts.max_positions, facts.layout.kind, facts.head_rows_unused) == (4096, "full", 126349)


def test_ids_absent_from_the_config_have_the_published_defaults():
    bare = {key: value for key, value in PUBLISHED.items() if not key.endswith("token_id")}
    assert section().facts(bare) == section().facts(PUBLISHED)


def test_ids_of_the_section_win():
    facts = section(mask_id=5, eos_ids=(7, 8), pad_id=9, eot_id=8).facts(PUBLISHED)
    assert (facts.mask_id, facts.eos_ids, facts.pad_id, facts.extra_ids) == (5, (7, 8), 9, {"eot": 8})


def test_a_small_vocabulary_without_ids_asks_for_them():
    config = {key: value for key, value in tiny_config().items() if not key.endswith("token_id")}
    with pytest.raises(ValueError, match="'mask_token_id'; give 'mask_id'"):
        section().facts(config)
    with pytest.raises(ValueError, match="'eos_token_id'; give 'eos_ids'"):
        section(mask_id=1).facts(config)


def test_an_id_outside_the_vocabulary_is_named():
    with pytest.raises(ValueError, match="mask_id = 400 lies outside"):
        section(mask_id=400).facts(tiny_config())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_type", "sequential"),
        ("layer_norm_type", "default"),
        ("activation_type", "swiglu"),
        ("alibi", True),
        ("attention_layer_norm", True),
        ("input_emb_norm", True),
        ("scale_logits", True),
        ("rope", False),
        ("include_qkv_bias", True),
        ("block_group_size", 4),
        ("attention_dropout", 0.1),
    ],
)
def test_an_architecture_that_is_not_computed_is_refused_by_key_and_value(key, value):
    with pytest.raises(ValueError, match=rf"{key}={value!r} is not supported; supported: "):
        section().facts(PUBLISHED | {key: value})


def test_an_absent_architecture_key_counts_with_its_published_default():
    config = {key: value for key, value in PUBLISHED.items() if key not in ("block_type", "rope")}
    with pytest.raises(ValueError, match=r"block_type='sequential' \(the default of an absent key\).*rope=False"):
        section().facts(config)


def test_missing_sizes_are_named_together():
    config = {key: value for key, value in PUBLISHED.items() if key not in ("d_model", "vocab_size", "embedding_size")}
    with pytest.raises(ValueError, match="config has no 'd_model'; config has no 'vocab_size'"):
        section().facts(config)


def test_several_published_end_ids_all_end_a_response():
    assert section().facts(PUBLISHED | {"eos_token_id": [126081, 7]}).eos_ids == (126081, 7, 126348)


def test_embedding_rows_come_before_the_vocabulary_size():
    assert section().facts(PUBLISHED | {"vocab_size": 126400}).vocab_size == 126464
    assert section().facts(PUBLISHED | {"embedding_size": None}).vocab_size == 126464


def test_detection_by_model_type_or_class():
    assert dare_detect_model({"model_type": "llada"}) == "llada"
    assert dare_detect_model({"architectures": ["LLaDAModelLM"]}) == "llada"
    assert dare_detect_model({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}) is None


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "lladamoe"},
        {"architectures": ["LLaDAMoEModelLM"]},
        {"model_type": "llada", "architectures": ["LLaDAMoEModel"]},
        {"model_type": "llada", "num_experts": 64},
    ],
)
def test_the_mixture_is_told_from_the_dense_model_whose_type_it_shares(config):
    assert dare_detect_model(config) == "llada-moe"


def test_the_component_claims_only_what_stands():
    components = {component.kind: component.provides for component in dare_model_adapters()}
    claimed = {"masked", "token-logp", "mask-token", "kv-approx", "value-head"}
    assert components == dict.fromkeys(("llada", "llada-moe"), claimed)


def test_unknown_options_are_refused():
    with pytest.raises(ValidationError, match="mask_token"):
        section(mask_token=3)
