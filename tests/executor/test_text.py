"""Text codecs: what LLaDA prompts and completions are in tokens."""

from __future__ import annotations

import json

import pytest

from dare_core.backbones.text import TokenizerCodec, read_tokenizer
from dare_core.errors import UserError
from dare_core.testing.tokenizers import write_tokenizer
from dare_core.types import Message, Prompt
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import SPECIAL_TOKENS, special_ids, tiny_config, write_llada_tokenizer

START, END, MASK, OPEN, CLOSE, TURN = (special_ids(262)[text] for text in SPECIAL_TOKENS)


@pytest.fixture
def codec(tmp_path):
    return make(tmp_path)


def make(folder, **edit):
    write_llada_tokenizer(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings = {key: value for key, value in (settings | edit).items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    section = LladaSection(config=tiny_config(), init="random", tokenizer=str(folder))
    return LladaAdapter.load_text(section)


def chat(*turns):
    return Prompt(id="row-3", index=3, messages=tuple(Message(role, content) for role, content in turns))


def raw(text):
    return list(text.encode())


def test_a_chat_prompt_is_the_published_template_with_an_open_header(codec):
    got = codec.encode_prompt(chat(("system", "Be kind."), ("user", "  1+1?\n")))
    header = lambda role: [OPEN, *raw(role), CLOSE, *raw("\n\n")]  # noqa: E731
    assert got == [
        START,
        *header("system"),
        *raw("Be kind."),
        TURN,
        *header("user"),
        *raw("1+1?"),
        TURN,
        *header("assistant"),
    ]


def test_a_completion_ends_its_turn_and_leaves_no_header_open(codec):
    assert codec.encode_completion("two") == [*raw("two"), TURN]


def test_prompt_and_completion_are_what_the_next_turn_would_render(codec):
    both = codec.encode_prompt(chat(("user", "hi"))) + codec.encode_completion("yo")
    longer = codec.encode_prompt(chat(("user", "hi"), ("assistant", "yo"), ("user", "more")))
    assert longer[: len(both)] == both


def test_the_built_in_template_equals_the_file_s(tmp_path, codec):
    prompt = chat(("system", "a"), ("user", "b"), ("assistant", "c"), ("user", "d"))
    assert make(tmp_path / "bare", chat_template=None).encode_prompt(prompt) == codec.encode_prompt(prompt)


def test_the_template_of_the_file_wins(tmp_path):
    codec = make(tmp_path, chat_template="{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert codec.render((Message("user", "x"),)) == "[x]"
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert make(tmp_path).render((Message("user", "x"),)) == "x!"


def test_a_template_cannot_reach_python(tmp_path):
    codec = make(tmp_path, chat_template="{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}")
    with pytest.raises(UserError, match="the chat template refuses"):
        codec.render((Message("user", "x"),))


def test_a_template_that_raises_says_why(tmp_path):
    codec = make(tmp_path, chat_template="{{ raise_exception('no system turns') }}")
    with pytest.raises(UserError, match="refuses these turns: no system turns"):
        codec.render((Message("user", "x"),))


def test_unknown_roles_are_named(codec):
    with pytest.raises(UserError, match="unknown chat role 'tool'; this model has system, user, assistant"):
        codec.encode_prompt(chat(("tool", "x")))


def test_plain_text_is_tokenised_as_it_stands(codec):
    assert codec.encode_prompt(Prompt(id="a", index=0, text=" 2+2=")) == raw(" 2+2=")
    assert codec.encode_prompt(Prompt(id="a", index=0, text="<|startoftext|>x")) == [START, *raw("x")]


def test_a_prompt_with_the_mask_token_is_refused_by_row(codec):
    with pytest.raises(UserError, match="row-3: the prompt holds the mask token"):
        codec.encode_prompt(chat(("user", "fill <|mdm_mask|> in")))


def test_an_answer_that_spells_a_special_token_does_not_produce_it(codec):
    ids = codec.encode_completion("a<|mdm_mask|><|eot_id|>")
    assert MASK not in ids
    assert ids.count(TURN) == 1
    assert codec.decode(ids) == "a<|mdm_mask|><|eot_id|>"


def test_encoding_a_completion_does_not_change_later_prompts(codec):
    before = codec.encode_prompt(chat(("user", "x")))
    codec.encode_completion("<|eot_id|>")
    assert codec.encode_prompt(chat(("user", "x"))) == before


def test_special_tokens_have_no_text(codec):
    ids = [START, *raw("4é "), TURN, END, MASK, OPEN, *raw("z"), CLOSE]
    assert codec.decode(ids) == "4é z"
    assert codec.decode([]) == ""


def test_ids_beyond_the_tokenizer_have_no_text(tmp_path):
    write_tokenizer(tmp_path, {"<e>": 300, "<m>": 301}, 302)
    facts = LladaSection(path="x", mask_id=301, eos_ids=(300,)).facts(tiny_config(vocab_size=400))
    codec = TokenizerCodec(read_tokenizer(tmp_path), facts, end_id=300)
    assert codec.decode([65, 299, 350, 300, 66]) == "AB"


def test_chat_without_any_template_says_what_to_do(tmp_path):
    write_tokenizer(tmp_path, {"<e>": 300, "<m>": 301}, 302)
    facts = LladaSection(path="x", mask_id=301, eos_ids=(300,)).facts(tiny_config(vocab_size=302))
    codec = TokenizerCodec(read_tokenizer(tmp_path), facts, end_id=300)
    with pytest.raises(UserError, match=r"no chat template.*plain text"):
        codec.render((Message("user", "x"),))


def test_a_broken_tokenizer_file_is_named(tmp_path):
    write_llada_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: not a readable tokenizer"):
        read_tokenizer(tmp_path)


def test_every_text_survives_the_round_trip(codec):
    text = "Tabs\tand\r\nlines, ünïcödé 数学 🙂  double  spaces , dots ."
    assert codec.decode(codec.encode_completion(text)) == text


def test_tiny_tokenizers_with_few_ids_keep_ascii_and_mark_the_rest(tmp_path):
    write_tokenizer(tmp_path, {"<m>": 130, "<e>": 131}, 132)
    facts = LladaSection(path="x", mask_id=130, eos_ids=(131,)).facts(tiny_config(vocab_size=132))
    codec = TokenizerCodec(read_tokenizer(tmp_path), facts, end_id=131)
    assert codec.decode(codec.encode_completion("aé!")) == "a??!"


def test_tokenizer_ids_must_differ_and_fit(tmp_path):
    with pytest.raises(ValueError, match="must differ"):
        write_tokenizer(tmp_path, {"<a>": 5, "<b>": 5}, 300)
    with pytest.raises(ValueError, match="ASCII needs 128"):
        write_tokenizer(tmp_path, {"<a>": 5}, 100)
