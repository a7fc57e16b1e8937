"""Rollouts of block models as the native backend records them."""

from __future__ import annotations

import pytest
import torch

from dare_core.errors import UserError
from dare_core.interfaces import RolloutRequest
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.testing.toy_models import ToyBlock
from dare_core.types import Address, Prompt, Rollout

TOY = ToyBlock(8, 24, 3, block_length=4)
QUESTIONS = tuple(Prompt(id=f"q{index}", index=index, text=text) for index, text in enumerate(("a", "abcde", "abcd")))


def rollout(toy: ToyBlock = TOY, **options: object) -> Rollout:
    section = NativeSection(new_tokens=6, **options)
    request = RolloutRequest(
        prompts=QUESTIONS,
        samples=2,
        settings=section.settings(toy.facts.layout),
        address=Address(1, "rollout"),
    )
    return NativeBackend(section, toy).generate(request)


def test_a_block_models_own_block_length_is_used_where_none_is_given() -> None:
    assert rollout(temperature=1.0).trace.layout_block_length == 4
    assert rollout(temperature=1.0, block_length=2).trace.layout_block_length == 2


def test_completions_end_at_the_asked_length_while_records_keep_the_whole_block() -> None:
    got = rollout(temperature=1.0, whole_blocks=True)
    for row, prompt in enumerate(prompt for prompt in QUESTIONS for _ in range(2)):
        length = len(prompt.text)
        assert got.response[row].sum() == -(-(length + 6) // 4) * 4 - length
        kept = got.completion[row]
        assert kept.sum() <= 6
        ended = int(got.tokens[row][kept][-1]) in TOY.facts.eos_ids
        assert got.finish[row] == ("eos" if ended else "length")
        assert ended or kept.sum() == 6
    assert (got.trace.commit_step >= 0).equal(got.response)


def test_rollouts_with_edits_do_not_claim_to_replay() -> None:
    edits = {"kind": "joint-threshold", "options": {"threshold": 0.3, "edit_threshold": 0.2}}
    got = rollout(temperature=1.0, selection=edits, whole_blocks=True)
    assert len(got.trace.edits) > 0
    assert not got.trace.replayable
    assert got.logp is None
    plain = rollout(temperature=1.0)
    assert plain.trace.replayable
    assert plain.trace.edits is None
    assert NativeSection(new_tokens=6, selection=edits).withheld().keys() == {"commit-step", "logp"}
    assert not NativeSection(new_tokens=6).withheld()


def test_prompts_must_leave_room_for_whole_blocks() -> None:
    toy = ToyBlock(8, 11, 3, block_length=4)
    assert len(rollout(toy)) == 6
    with pytest.raises(UserError, match=r"'q1' has 5 tokens, and 6 new ones are asked for, in whole blocks"):
        rollout(toy, whole_blocks=True)


def test_a_model_without_a_cache_decodes_with_cache_auto() -> None:
    assert TOY.open_cache(2, 8) is None
    assert torch.equal(rollout(cache="auto").tokens, rollout(cache="off").tokens)
