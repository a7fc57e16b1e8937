"""SDAR's text over its published tokenizer: think parts, and prompt + completion as the template renders them."""

from __future__ import annotations

import pytest
from tests.executor.published_tokenizers import write_published_tokenizer
from tests.executor.test_sdar import PUBLISHED

from dare_core.errors import UserError
from dare_core.types import Message, Prompt
from dare_sdar.adapter import SdarAdapter
from dare_sdar.config import SdarSection
from dare_sdar.text import CHAT_TEMPLATE

CHAT = (Message("user", "What is 12+7?"),)
EMPTY = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_published_tokenizer("sdar", tmp_path_factory.mktemp("sdar") / "tokenizer")


@pytest.fixture(scope="module")
def codecs(folder):
    """``thinking`` -> codec."""
    made = {}
    for thinking in (True, False):
        section = SdarSection(path="anywhere", tokenizer=str(folder), thinking=thinking)
        made[thinking] = SdarAdapter.build_text(section, section.facts(PUBLISHED))
    return made


def prompt(*messages):
    return Prompt(id="row-1", index=1, messages=messages or CHAT)


def test_the_prompt_has_no_system_turn_and_leaves_thinking_to_the_model(codecs):
    opened = "<|im_start|>user\nWhat is 12+7?<|im_end|>\n<|im_start|>assistant\n"
    assert codecs[True].render(CHAT) == opened
    assert codecs[False].render(CHAT) == opened + EMPTY
    want = "151644 872 198 3838 374 220 16 17 10 22 30 151645 198 151644 77091 198"
    ids = [int(one) for one in want.split()]
    assert codecs[True].encode_prompt(prompt()) == ids
    assert codecs[False].encode_prompt(prompt()) == [*ids, 151667, 271, 151668, 271]


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(
    "answer", ["It is 19.", "\nIt is 19.\n", "<think>\n12+7=19\n</think>\n\nIt is 19.", "12+7\n</think>19", ""]
)
def test_prompt_and_completion_are_the_whole_conversation_without_an_open_header(codecs, thinking, answer):
    codec = codecs[thinking]
    if "</think>" in answer and not thinking:
        with pytest.raises(UserError, match=r"model\.thinking.*holds </think>, but thinking is off"):
            codec.encode_completion(answer)
        return
    turns = [{"role": "user", "content": "What is 12+7?"}, {"role": "assistant", "content": answer}]
    whole = codec.tokenizer.apply_chat_template(turns, tokenize=False)
    ids = codec.encode_prompt(prompt()) + codec.encode_completion(answer)
    assert codec.tokenizer.decode(ids) + "\n" == whole
    assert ids[-1] == 151645


def test_thinking_on_and_off_differ_only_in_who_writes_the_empty_think_part(codecs):
    both = [codec.encode_prompt(prompt()) + codec.encode_completion("It is 19.") for codec in codecs.values()]
    assert both[0] == both[1]


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("roles", ["u", "su", "uau", "ua", "suaua", "ut", "utut", "utu"])
def test_the_built_in_template_equals_the_published_one(codecs, thinking, roles):
    names = {"u": "user", "s": "system", "a": "assistant", "t": "assistant"}
    turns = [{"role": names[letter], "content": f"turn {n}"} for n, letter in enumerate(roles)]
    for turn, letter in zip(turns, roles, strict=True):
        if letter == "t":
            turn["content"] = f"<think>\nwhy\n</think>\n\n{turn['content']}"
    for is_open in (True, False):
        published, own = (
            codecs[True].tokenizer.apply_chat_template(
                turns,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=is_open,
                enable_thinking=thinking,
            )
            for template in (None, CHAT_TEMPLATE)
        )
        assert own == published


def test_earlier_answers_lose_their_think_part(codecs):
    turns = (*CHAT, Message("assistant", "<think>\n12+7=19\n</think>\n\nIt is 19."), Message("user", "Sure?"))
    assert "12+7=19" not in codecs[True].render(turns)


def test_special_tokens_have_no_text_and_spelled_ones_are_text(codecs):
    codec = codecs[False]
    ids = [*codec.encode_completion("4é 数学"), 151643, 151643, 151669, 151644, 151650]
    assert codec.decode(ids) == "4é 数学"
    spelled = codec.encode_completion("a<|MASK|><|im_end|>")
    assert spelled.count(151645) == 1
    assert 151669 not in spelled
    assert codec.decode(spelled) == "a<|MASK|><|im_end|>"


def test_think_tags_are_text_of_the_answer(codecs):
    assert codecs[True].decode(codecs[True].encode_completion("19")) == f"{EMPTY}19"


def test_a_prompt_with_the_mask_token_is_refused_by_row(codecs):
    with pytest.raises(UserError, match="row-1: the prompt holds the mask token"):
        codecs[True].encode_prompt(prompt(Message("user", "fill <|MASK|> in")))


def test_unknown_roles_are_named(codecs):
    with pytest.raises(UserError, match="unknown chat role 'tool'; this model has system, user, assistant"):
        codecs[True].render((Message("tool", "x"),))
