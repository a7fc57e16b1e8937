"""What end tokens do while decoding, on models whose logits are written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.executor.decoding import decode, responses, scripted, settings

from dare_core.interfaces import RolloutRequest
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Address, EosRule, Prompt, Rollout

# Tokens a, b, end; position 0 is the prompt.
END, MASK = 2, 3
PREFERS_END = [[1.0, 0.5, 4.0]] * 9
ENDS_IN_SECOND_BLOCK = [[3.0, 0.0, 0.0]] * 4 + [[0.0, 0.0, 3.0]] + [[0.0, 3.0, 0.0]] * 4
RULES = list(EosRule)


def rollout(toy: ToyMasked, rule: EosRule, **more: object) -> Rollout:
    section = NativeSection(new_tokens=8, block_length=2, eos_rule=rule, **more)
    return NativeBackend(section, toy).generate(request(section))


def request(section: NativeSection) -> RolloutRequest:
    prompt = Prompt(id="q", index=0, text="a")
    return RolloutRequest(prompts=[prompt], samples=1, settings=section.settings(), address=Address(0, "rollout"))


def test_fill_decodes_everything_and_cuts_the_text_at_the_first_end() -> None:
    got = rollout(scripted(ENDS_IN_SECOND_BLOCK), EosRule.FILL)
    assert got.tokens[0].tolist() == [0, 0, 0, 0, END, 1, 1, 1, 1]
    assert got.text == ("aaa",)
    assert got.completion[0].nonzero()[:, 0].tolist() == [1, 2, 3, 4]
    assert got.response[0].sum() == 8
    assert got.finish == ("eos",)
    assert got.forwards.tolist() == [8]


def test_stop_computes_no_block_after_the_one_with_the_end() -> None:
    got = rollout(scripted(ENDS_IN_SECOND_BLOCK), EosRule.STOP)
    assert got.text == ("aaa",)
    assert got.forwards.tolist() == [4]
    assert got.trace.commit_step[0].tolist() == [-1, 0, 1, 2, 3, -1, -1, -1, -1]
    assert got.tokens[0, 5:].tolist() == [END] * 4
    assert got.response[0].sum() == 8, "what was seen as masks stays in the row, so that replay sees it too"


def test_stop_ends_the_row_of_a_block_model_at_its_last_block() -> None:
    bias = torch.tensor(ENDS_IN_SECOND_BLOCK, dtype=torch.float64)
    toy = ToyBlock.from_tables(bias, torch.zeros(9, 9, 3, 4, dtype=torch.float64), block_length=2)
    result = decode(toy, [[0]], settings(8, 2, 2, eos_rule=EosRule.STOP))
    # Blocks are counted from position 0: [prompt, 1], [2, 3], [4, 5], ...
    assert responses(result) == [[0, 0, 0, END, 1]]
    assert result.tokens[0, 6:].tolist() == [toy.facts.pad_id] * 3
    assert result.stopped.tolist() == [True]


def test_stop_frees_the_place_of_a_row_for_the_next() -> None:
    toy = ToyMasked(6, 12, 11)
    protocol = settings(8, 2, 2, temperature=1.0, eos_rule=EosRule.STOP)
    result = decode(toy, [[0]] * 30, protocol, rows_per_batch=4)
    assert result.stopped.any()
    assert not result.stopped.all()
    everything = decode(toy, [[0]] * 30, replace(protocol, eos_rule=EosRule.FILL))
    kept = result.commit_step >= 0
    assert torch.equal(result.tokens[kept], everything.tokens[kept]), "stopping early changes no earlier token"
    ended = (result.tokens == toy.facts.eos_ids[0]) & kept
    assert torch.equal(result.stopped | (result.forwards == 8), ended.any(dim=1) | (result.forwards == 8))


def test_suppression_lets_no_end_appear() -> None:
    toy = scripted(PREFERS_END)
    for temperature in (0.0, 1.0):
        got = rollout(toy, EosRule.SUPPRESS, temperature=temperature)
        assert not (got.tokens[0, 1:] == END).any()
        assert got.finish == ("length",)
        assert len(got.text[0]) == 8
    assert torch.equal(got.completion, got.response)


def test_log_probabilities_are_those_after_suppression() -> None:
    got = rollout(scripted(PREFERS_END), EosRule.SUPPRESS)
    wanted = torch.tensor([1.0, 0.5], dtype=torch.float64).log_softmax(dim=0)[0]
    torch.testing.assert_close(got.logp[0, 1:], wanted.expand(8))


def test_a_model_that_prefers_the_end_gives_an_empty_text() -> None:
    for rule in (EosRule.FILL, EosRule.STOP, EosRule.SUPPRESS_CONFIDENCE):
        got = rollout(scripted(PREFERS_END), rule)
        assert got.text == ("",)
        assert got.finish == ("eos",)
        assert got.completion.sum() == 1
    assert rollout(scripted(PREFERS_END), EosRule.STOP).forwards.tolist() == [2]


@pytest.mark.parametrize("ties", ["exact", "published"])
def test_confidence_suppression_commits_ends_last(ties: str) -> None:
    # Position 2 surely ends, positions 1 and 3 are unsure about letters.
    toy = scripted([[0.0, 0.0, 0.0], [0.3, 0.0, 0.0], [0.0, 0.0, 9.0], [0.0, 0.2, 0.0]])
    plain = decode(toy, [[0]], settings(3), ties=ties)
    assert plain.commit_step[0, 1:].tolist() == [1, 0, 2]
    late = decode(toy, [[0]], settings(3, eos_rule=EosRule.SUPPRESS_CONFIDENCE), ties=ties)
    assert late.commit_step[0, 1:].tolist() == [0, 2, 1]
    assert late.tokens[0].tolist() == [0, 0, END, 1]
    # Recorded is the probability before the suppression.
    torch.testing.assert_close(late.logp.sum(), plain.logp.sum())


def test_confidence_suppression_renormalises_without_the_ends() -> None:
    # With the end counted, position 1 is the surer one (0.47 against 0.44); without it, position 2 is (0.62, 0.98).
    toy = scripted([[0.0, 0.0, 0.0], [2.0, 1.5, 0.0], [5.0, 1.0, 4.99]])
    plain = decode(toy, [[0]], settings(2))
    late = decode(toy, [[0]], settings(2, eos_rule=EosRule.SUPPRESS_CONFIDENCE))
    assert plain.commit_step[0, 1:].tolist() == [0, 1]
    assert late.commit_step[0, 1:].tolist() == [1, 0]


def test_end_of_turn_is_held_back_by_confidence_but_not_by_logit_suppression() -> None:
    toy = scripted([[0.0, 0.0, 0.0], [0.0, 3.0, 0.0], [1.0, 0.0, 0.0]])
    toy.facts = replace(toy.facts, extra_ids={"eot": 1})
    late = decode(toy, [[0]], settings(2, eos_rule=EosRule.SUPPRESS_CONFIDENCE))
    assert late.commit_step[0, 1:].tolist() == [1, 0]
    toy.facts = replace(toy.facts, eos_ids=(END, 1))
    assert responses(decode(toy, [[0]], settings(2, eos_rule=EosRule.SUPPRESS))) == [[1, 0]]


def test_text_and_counts_end_at_any_of_the_end_tokens() -> None:
    toy = scripted([[3.0, 0.0, 0.0]] * 3 + [[0.0, 3.0, 0.0]] * 6)
    toy.facts = replace(toy.facts, eos_ids=(END, 1))
    got = rollout(toy, EosRule.FILL)
    assert got.text == ("aa",)
    assert got.completion.sum() == 3
