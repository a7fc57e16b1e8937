"""Demonstrations with several answers: their tokens in every family, and that only answers are hidden and learnt."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tests.draw_enumeration import context_of, values
from tests.executor.elbo_estimators import bernoulli, blocks, counts, espo
from tests.executor.families import FAMILIES
from tests.executor.toy_runs import TOYS, metrics_of, offline_spec, write_spec
from tests.made_inputs import rows_of
from tests.made_sft import loss_of_scores
from torch import Tensor

from dare_core.data.rows import demonstration_rows, one_turn_each
from dare_core.diffusion.completion import completion_mask
from dare_core.errors import UserError
from dare_core.testing.command import run_dare_here
from dare_core.testing.enumeration import exact_elbo
from dare_core.testing.fake_distributions import installed
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Address, Demonstration, Message, Prompt, Rows

#: families whose templates end each answer with the end token, and whose blocks are counted from the row's first token
KINDS = ["llada", "dream", "sdar", "sdar-moe", "llada2"]
TURNS = (
    Message("user", "What is 2+2?"),
    Message("assistant", "It is 4."),
    Message("user", "And 3+3?"),
    Message("assistant", "6, then."),
    Message("user", "Why?"),
)
ALL = Demonstration(Prompt(id="talk", index=5, messages=TURNS), "Counting.", earlier=(1, 3))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {f.kind: f.load(f.write(folder / f.kind, **f.spread)) for f in FAMILIES}


def learnt_spans(rows: Rows, row: int = 0) -> list[list[int]]:
    spans: list[list[int]] = []
    for column, on in enumerate(rows.response[row].tolist()):
        if on and not (column and rows.response[row, column - 1]):
            spans.append([])
        if on:
            spans[-1].append(int(rows.tokens[row, column]))
    return spans


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_learnt_as_the_model_would_write_them_and_nothing_else_is(adapters, kind):
    adapter = adapters[kind]
    codec = adapter.text
    rows = demonstration_rows([ALL], codec, adapter.facts)
    assert learnt_spans(rows) == [codec.encode_completion(t) for t in ("It is 4.", "6, then.", "Counting.")]
    # Each answer stands behind the open header that asks for it.
    for turn, place in zip((1, 3, 5), response_starts(rows), strict=True):
        header = codec.encode_prompt(Prompt(id="p", index=0, messages=TURNS[:turn]))[-8:]
        assert rows.tokens[0, place - len(header) : place].tolist() == header
    assert int(rows.prompt_length[0]) == len(codec.encode_prompt(Prompt(id="p", index=0, messages=TURNS[:1])))
    assert torch.equal(rows.completion, rows.response)
    assert bool(rows.valid.all())


def response_starts(rows: Rows) -> list[int]:
    mask = rows.response[0].long()
    return (mask.diff(prepend=mask.new_zeros(1)) == 1).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("kind", ["llada", "dream", "llada2"])
def test_the_row_is_the_templates_conversation(adapters, kind):
    codec = adapters[kind].text
    rows = demonstration_rows([ALL], codec, adapters[kind].facts)
    assert rows.tokens[0].tolist() == codec.encode_prompt(ALL.prompt) + codec.encode_completion("Counting.")


def test_where_a_template_shortens_earlier_answers_they_are_learnt_in_full(adapters):
    codec = adapters["sdar"].text
    thought = replace(
        ALL,
        prompt=replace(ALL.prompt, messages=(TURNS[0], Message("assistant", "<think>\n2\n</think>\n\n4"), TURNS[2])),
        earlier=(1,),
    )
    rows = demonstration_rows([thought], codec, adapters["sdar"].facts)
    assert learnt_spans(rows)[0] == codec.encode_completion("<think>\n2\n</think>\n\n4")
    assert codec.decode(learnt_spans(rows)[1]).endswith("Counting.")


def test_an_answer_that_spells_the_end_token_is_refused_where_others_follow(adapters):
    codec = adapters["dream"].text
    spelled = replace(
        ALL,
        prompt=replace(ALL.prompt, messages=(TURNS[0], Message("assistant", "a<|im_end|>b"), TURNS[2])),
        earlier=(1,),
    )
    with pytest.raises(UserError, match="turn 1 spells the end token") as caught:
        demonstration_rows([spelled], codec, adapters["dream"].facts)
    assert caught.value.problems[0].where == "talk"


def test_a_template_that_does_not_end_its_turns_is_refused(adapters):
    adapter = adapters["llada-moe"]
    with pytest.raises(UserError, match=r"does not close earlier answers with <.endoftext.>.* use 'last' or 'one'"):
        demonstration_rows([ALL], adapter.text, adapter.facts)
    demonstration_rows([ALL.up_to(3)], adapter.text, adapter.facts)


def test_a_template_that_rewrites_the_past_is_refused(adapters):
    codec = adapters["dream"].text
    kept, codec._template = codec._template, "{{ messages|length }}" + (codec._template or "")
    try:
        with pytest.raises(UserError, match="rewrites turns before an earlier answer"):
            demonstration_rows([ALL], codec, adapters["dream"].facts)
    finally:
        codec._template = kept


def test_filling_belongs_to_the_last_answer_and_completions_end_in_each(adapters):
    adapter = adapters["llada"]
    short = Demonstration(Prompt(id="s", index=1, messages=TURNS[:1]), "4")
    rows = demonstration_rows([short, ALL], adapter.text, adapter.facts, supervise_padding=True)
    assert bool(rows.response[0, len(adapter.text.encode_prompt(short.prompt)) :].all())
    assert torch.equal(rows.completion[1], rows.response[1])
    assert rows.completion[0].sum() == len(adapter.text.encode_completion("4"))
    longer = demonstration_rows(
        [ALL, replace(ALL, completion="Counting. " * 3)], adapter.text, adapter.facts, supervise_padding=True
    )
    assert longer.response[0].sum() - longer.completion[0].sum() == len(" Counting." * 2) + 1


def test_a_completion_ends_in_each_run_at_its_first_end_token():
    tokens = torch.tensor([[1, 9, 9, 1, 2, 9, 9, 1], [9, 9, 1, 1, 9, 1, 1, 1]])
    response = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0], [1, 1, 0, 1, 1, 1, 0, 1]]).bool()
    found = completion_mask(tokens, response, [9])
    assert found.long().tolist() == [[0, 1, 0, 0, 1, 1, 0, 0], [1, 0, 0, 1, 1, 0, 0, 1]]


def talk(index: int = 0, answers: tuple[str, ...] = ("ab", "c")) -> Demonstration:
    turns = [Message("user", "de")]
    for answer in answers[:-1]:
        turns += [Message("assistant", answer), Message("user", "f")]
    return Demonstration(
        Prompt(id=f"talk-{index}", index=index, messages=tuple(turns)),
        answers[-1],
        tuple(range(1, 2 * len(answers) - 2, 2)),
    )


TOY_ADAPTERS = [ToyMasked(8, 12, seed=3), ToyBlock(8, 12, seed=3, block_length=3)]


def gapped(adapter) -> Rows:
    """A row d | a b | d | c: two answers with a given token between."""
    tokens = torch.tensor([[3, 0, 1, 3, 2]]) % (adapter.facts.vocab_size - 2)
    prompt = torch.tensor([[1, 0, 0, 1, 0]]).bool()
    return rows_of(tokens, prompt, ~prompt)


@pytest.mark.parametrize("adapter", [ToyMasked(5, 8, seed=3), ToyBlock(5, 8, seed=3, block_length=2)])
@pytest.mark.parametrize("estimator", [counts(), counts(draws=2), espo(draws=1)], ids=["count", "count-2", "espo"])
def test_the_expectation_over_every_draw_is_the_elbo_of_all_answers(estimator, adapter):
    rows = gapped(adapter)
    found = values(estimator, adapter, rows).mean()
    torch.testing.assert_close(found, exact_elbo(adapter, rows).detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("adapter", TOY_ADAPTERS, ids=["masked", "block"])
@pytest.mark.parametrize(
    "estimator",
    [
        bernoulli(draws=3),
        bernoulli(weight="cart", redraws=2),
        bernoulli(end_run_as_one=True, targets="completion"),
        counts(draws=3),
        espo(),
        blocks(),
    ],
    ids=["bernoulli", "cart", "closing-run", "count", "espo", "blocks"],
)
def test_only_answers_are_hidden_and_scored(estimator, adapter):
    rows = demonstration_rows([talk(i) for i in range(6)], adapter.text, adapter.facts)
    views = estimator.plan(rows, context_of(adapter))
    hidden = views.inputs == adapter.facts.mask_id
    assert torch.equal(hidden, views.scored)
    assert bool((hidden & rows.response[views.row]).any(dim=0)[rows.response[0]].all())
    assert not bool((hidden & ~rows.response[views.row]).any())
    assert torch.equal(views.valid, rows.valid[views.row])


def sft_loss(adapter, rows: Rows, estimator=None, normalizer: str = "sequence") -> Tensor:
    estimator = estimator or bernoulli(draws=2)
    views = estimator.plan(rows, context_of(adapter))
    return loss_of_scores(estimator, rows, views, adapter.token_logp(views), normalizer)


def test_the_divisor_counts_learnt_tokens_and_not_the_turns_between():
    adapter = TOY_ADAPTERS[0]
    rows = demonstration_rows([talk()], adapter.text, adapter.facts)
    by_row, by_rows = (sft_loss(adapter, rows, normalizer=kind) for kind in ("sequence", "rows"))
    torch.testing.assert_close(by_row * 5, by_rows)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mask_survives_packing_beside_other_rows_and_padding(adapters, kind):
    adapter = adapters[kind]
    short = Demonstration(Prompt(id="s", index=1, messages=TURNS[:1]), "4")
    together = demonstration_rows([short, ALL], adapter.text, adapter.facts)
    alone = demonstration_rows([ALL], adapter.text, adapter.facts)
    estimator = counts(draws=2)
    found = []
    for rows, row in ((together, 1), (alone, 0)):
        views = estimator.plan(rows, context_of(adapter))
        found.append(estimator.reduce(views, adapter.token_logp(views), rows).value[row])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["sdar", "llada2"])
def test_in_block_layouts_an_answer_does_not_see_the_turns_behind_its_block(adapters, kind):
    adapter = adapters[kind]
    rows = demonstration_rows([ALL], adapter.text, adapter.facts)
    first = torch.zeros_like(rows.response)
    first[0, response_starts(rows)[0]] = True
    views = counts(draws=1).plan(
        replace(rows, response=first, completion=first, prompt=rows.valid & ~first), context_of(adapter)
    )
    changed = views.targets.clone()
    last = slice(response_starts(rows)[2], None)
    changed[0, last] = (changed[0, last] + 1) % 200
    other = replace(views, targets=changed, inputs=torch.where(views.scored, views.inputs, changed))
    assert torch.equal(adapter.token_logp(views).logp, adapter.token_logp(other).logp)


def test_blocks_that_start_at_the_response_take_one_answer_per_row(adapters):
    adapter = adapters["sdar"]
    facts = replace(adapter.facts, layout=replace(adapter.facts.layout, origin="response"))
    with pytest.raises(UserError, match="3 answers of one conversation"):
        demonstration_rows([ALL], adapter.text, facts)
    demonstration_rows([ALL.up_to(3)], adapter.text, facts)


def test_one_answer_is_drawn_by_row_and_step_each_as_likely():
    examples = [talk(i, ("a", "b", "c")) for i in range(300)]
    drawn = one_turn_each(examples, Address(3, "trained-turn", 7))
    picked = [len(one.prompt.messages) for one in drawn]
    assert {n: picked.count(n) > 70 for n in (1, 3, 5)} == {1: True, 3: True, 5: True}
    assert all(not one.earlier for one in drawn)
    backwards = one_turn_each(examples[::-1], Address(3, "trained-turn", 7))
    assert backwards[::-1] == drawn
    assert one_turn_each(examples, Address(3, "trained-turn", 8)) != drawn


def test_over_long_conversations_are_refused_and_never_cut():
    adapter = TOY_ADAPTERS[0]
    with pytest.raises(UserError, match="have 8 tokens; max_tokens is 7"):
        demonstration_rows([talk()], adapter.text, adapter.facts, max_tokens=7)


@pytest.mark.parametrize("which", ["all", "one", "last", "marked"])
def test_runs_learn_conversations(tmp_path, which):
    spec = offline_spec(run__steps=3)
    spec["data"] = {"kind": "jsonl", "path": "talks.jsonl", "messages": "turns", "trained_turns": which}
    write_spec(tmp_path, spec)
    turns = [[m.role, m.content] for m in (*talk().prompt.messages, Message("assistant", "c"))]
    lines = [{"turns": [{"role": role, "content": text, "train": role == "assistant"} for role, text in turns]}] * 5
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with installed(tmp_path / "site", TOYS):
        result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 0, result.stderr
    trained = metrics_of(tmp_path / "runs/toy")[0]["data/response_tokens"]
    assert trained == {"all": 20, "marked": 20, "last": 8}.get(which, trained)


def test_the_first_token_is_given_where_nothing_predicts_it(adapters):
    text = Demonstration(Prompt(id="page", index=0, text=""), "Whole texts to learn.")
    for kind, given in (("dream", 1), ("llada", 0), ("sdar", 0)):
        rows = demonstration_rows([text], adapters[kind].text, adapters[kind].facts)
        assert rows.prompt.sum() == given
        assert rows.response.sum() == rows.tokens.shape[1] - given
        assert int(rows.prompt_length[0]) == given
