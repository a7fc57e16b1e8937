"""What is particular to Dream: facts of its config, its shift, its published size, its text."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from tests.executor.published_tokenizers import write_published_tokenizer

from dare_core.errors import UserError
from dare_core.types import AttentionLayout, Message, Prompt
from dare_dream.adapter import DreamAdapter
from dare_dream.config import DreamSection
from dare_dream.plugin import dare_detect_model, dare_model_adapters
from dare_dream.template import CHAT_TEMPLATE
from dare_dream.testing import tiny_config, write_dream_checkpoint

#: config.json of Dream-v0-Instruct-7B, as far as it is read
PUBLISHED = {
    "architectures": ["DreamModel"],
    "model_type": "Dream",
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "mask_token_id": 151666,
    "max_position_embeddings": 131072,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "pad_token_id": 151643,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
CHAT = (Message("user", "What is 12+7?"),)


def section(**options):
    return DreamSection(path="anywhere", **options)


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    folder = write_published_tokenizer("dream", tmp_path_factory.mktemp("dream") / "tokenizer")
    return DreamAdapter.build_text(section(tokenizer=str(folder)), section().facts(PUBLISHED))


def prompt(*messages):
    return Prompt(id="row-1", index=1, messages=messages or CHAT)


def test_published_facts():
    facts = section().facts(PUBLISHED)
    assert (facts.kind, facts.diffusion, facts.vocab_size, facts.mask_id) == ("dream", "masked", 152064, 151666)
    assert (facts.eos_ids, facts.pad_id, facts.extra_ids) == ((151643, 151645), 151643, {"eot": 151645})
    assert (facts.max_positions, facts.layout, facts.head_rows_unused) == (131072, AttentionLayout(), 151667)


def test_ids_absent_from_the_config_have_the_published_defaults():
    bare = {key: value for key, value in PUBLISHED.items() if not key.endswith("token_id")}
    assert section().facts(bare) == section().facts(PUBLISHED)


def test_ids_of_the_section_win():
    facts = section(mask_id=5, eos_ids=(7,), pad_id=9, eot_id=8).facts(PUBLISHED)
    assert (facts.mask_id, facts.eos_ids, facts.pad_id, facts.extra_ids) == (5, (7,), 9, {"eot": 8})


def test_a_small_vocabulary_without_ids_asks_for_them():
    config = {key: value for key, value in tiny_config().items() if not key.endswith("token_id")}
    with pytest.raises(ValueError, match="'mask_token_id'; give 'mask_id'"):
        section().facts(config)
    with pytest.raises(ValueError, match="'eos_token_id'; give 'eos_ids'"):
        section(mask_id=1).facts(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("rope_scaling", {"type": "yarn"}),
        ("rope_parameters", {"rope_theta": 5.0}),
        ("use_sliding_window", True),
        ("use_mrope", True),
        ("attention_dropout", 0.1),
    ],
)
def test_what_is_not_computed_is_refused_by_key_and_value(key, value):
    with pytest.raises(ValueError, match=f"{key}=.* is not supported; supported: "):
        section().facts(PUBLISHED | {key: value})


def test_missing_sizes_are_named_together():
    config = {key: value for key, value in PUBLISHED.items() if key not in ("hidden_size", "vocab_size")}
    with pytest.raises(ValueError, match="config has no 'vocab_size'; config has no 'hidden_size'"):
        section().facts(config)


def test_detection_by_model_type_or_class_and_nothing_else():
    assert dare_detect_model({"model_type": "Dream"}) == "dream"
    assert dare_detect_model({"architectures": ["DreamModel"]}) == "dream"
    assert dare_detect_model({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}) is None


def test_the_component_claims_only_what_stands():
    (component,) = dare_model_adapters()
    assert {"masked", "token-logp"} <= component.provides
    assert "kv-exact" not in component.provides


def test_unknown_options_are_refused():
    with pytest.raises(ValidationError, match="thinking"):
        section(thinking=True)


def test_the_released_7b_checkpoint_fits_tensor_by_tensor_and_byte_by_byte():
    with torch.device("meta"):
        module = DreamAdapter.build_module(PUBLISHED).to(torch.bfloat16)
    layout = DreamAdapter.weight_layout(PUBLISHED)
    parameters = dict(module.named_parameters())
    assert len(layout) == len(parameters) == 339
    assert sum(parameters[part.parameter].nbytes for parts in layout.values() for part in parts) == 15_231_233_024
    shapes = {key: tuple(parameters[parts[0].parameter].shape) for key, parts in layout.items()}
    assert shapes["model.layers.27.self_attn.k_proj.bias"] == (512,)
    assert shapes["model.layers.0.self_attn.v_proj.weight"] == (512, 3584)
    assert shapes["model.layers.3.mlp.down_proj.weight"] == (3584, 18944)


def test_a_position_is_predicted_by_the_state_before_it_with_its_own_mask_in_sight(tmp_path):
    """Not causal prediction: what stands at a position, and behind it, changes its own logits."""
    folder = write_dream_checkpoint(tmp_path / "model", initializer_range=0.2)
    adapter = DreamAdapter.load(DreamSection(path=str(folder)), device=torch.device("cpu"), dtype=torch.float32)
    tokens = torch.tensor([[65, 66, 260, 67]])
    valid = torch.ones_like(tokens, dtype=torch.bool)
    where = torch.tensor([[True, True, True, False]])

    def logits(row):
        with torch.no_grad():
            return adapter.logits(row, valid, where, layout=AttentionLayout(), prompt_length=torch.tensor([1]))

    got = logits(tokens)
    # The first position has no state before it and reads its own, as the second does.
    assert torch.equal(got[0], got[1])
    for column in (2, 3):
        other = tokens.clone()
        other[0, column] = 70
        assert not torch.allclose(logits(other)[2], got[2], atol=1e-3)


def test_the_prompt_is_chatml_with_the_default_system_turn(codec):
    assert codec.render(CHAT) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nWhat is 12+7?<|im_end|>\n<|im_start|>assistant\n"
    )
    want = (
        "151644 8948 198 2610 525 264 10950 17847 13 151645 198 151644 872 198 3838 374 220 16 17 10 22 30 151645 198"
    )
    assert codec.encode_prompt(prompt()) == [int(one) for one in f"{want} 151644 77091 198".split()]
    assert codec.render((Message("system", "Be brief."), *CHAT)).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")


def test_prompt_and_completion_are_the_whole_conversation_without_an_open_header(codec):
    turns = [{"role": "user", "content": "What is 12+7?"}, {"role": "assistant", "content": "It is 19."}]
    whole = codec.tokenizer.apply_chat_template(turns, tokenize=False)
    ids = codec.encode_prompt(prompt()) + codec.encode_completion("It is 19.")
    assert codec.tokenizer.decode(ids) + "\n" == whole
    assert ids[-1] == 151645


@pytest.mark.parametrize("roles", ["u", "su", "uau", "suauau"])
def test_the_built_in_template_equals_the_published_one(codec, roles):
    names = {"u": "user", "s": "system", "a": "assistant"}
    turns = [{"role": names[letter], "content": f" turn {n}\n"} for n, letter in enumerate(roles)]
    for is_open in (True, False):
        published, own = (
            codec.tokenizer.apply_chat_template(
                turns, chat_template=template, tokenize=False, add_generation_prompt=is_open
            )
            for template in (None, CHAT_TEMPLATE)
        )
        assert own == published


def test_special_tokens_have_no_text_and_spelled_ones_are_text(codec):
    ids = [151665, *codec.encode_completion("4é 数学"), 151643, 151643, 151666, 151644]
    assert codec.decode(ids) == "4é 数学"
    spelled = codec.encode_completion("a<|mask|><|im_end|>")
    assert spelled.count(151645) == 1
    assert 151666 not in spelled
    assert codec.decode(spelled) == "a<|mask|><|im_end|>"


def test_a_prompt_with_the_mask_token_is_refused_by_row(codec):
    with pytest.raises(UserError, match="row-1: the prompt holds the mask token"):
        codec.encode_prompt(prompt(Message("user", "fill <|mask|> in")))


def test_ids_beyond_the_tokenizer_have_no_text(codec):
    assert codec.decode([151667, 152063, 3838]) == "What"


def test_missing_and_broken_tokenizer_files_are_named(tmp_path):
    folder = write_dream_checkpoint(tmp_path / "model")
    (folder / "vocab.json").write_text("[")
    with pytest.raises(UserError, match=r"vocab\.json.*not a readable JSON file"):
        DreamAdapter.load_text(DreamSection(path=str(folder)))
    (folder / "merges.txt").unlink()
    with pytest.raises(UserError, match=r"no tokenizer\.json, and no vocab\.json with merges\.txt"):
        DreamAdapter.load_text(DreamSection(path=str(folder)))
