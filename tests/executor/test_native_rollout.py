"""The native backend's record of a rollout, and statistics of it."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from dare_core.errors import UserError
from dare_core.interfaces import RolloutRequest
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.rollout.statistics import collapsed_groups, rollout_statistics, unique_share
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Address, Message, Prompt, Rollout

TOY = ToyMasked(12, 48, 3)
QUESTIONS = [
    Prompt(id="first", index=4, text="abc"),
    Prompt(id="second", index=1, messages=(Message("user", "hi"),)),
    Prompt(id="third", index=7, text="b"),
]


def roll(
    prompts: list[Prompt] = QUESTIONS, samples: int = 3, toy: ToyMasked = TOY, seed: int = 0, **options: object
) -> Rollout:
    section = NativeSection(**{"new_tokens": 10, "block_length": 4, "temperature": 1.0} | options)
    request = RolloutRequest(
        prompts=prompts,
        samples=samples,
        settings=section.settings(),
        address=Address(seed, "rollout", 3),
        policy_version=17,
    )
    return NativeBackend(section, toy).generate(request)


def test_rows_come_in_the_order_of_prompts_then_samples_with_their_ids() -> None:
    got = roll()
    assert got.sample_id.tolist() == [12, 13, 14, 3, 4, 5, 21, 22, 23]
    assert got.group.tolist() == [4] * 3 + [1] * 3 + [7] * 3
    assert got.example_id == ("first",) * 3 + ("second",) * 3 + ("third",) * 3
    assert got.prompt_length.tolist() == [3] * 3 + [2] * 3 + [1] * 3
    assert got.tokens[3, :2].tolist() == TOY.text.encode_prompt(QUESTIONS[1])
    assert got.policy_version == 17
    assert got.trace.replayable
    assert got.trace.snapshots is None


def test_text_is_the_completion_without_special_tokens() -> None:
    got = roll(samples=6)
    for row in range(len(got)):
        ids = got.tokens[row][got.completion[row]].tolist()
        assert got.text[row] == TOY.text.decode(ids)
        assert (ids[-1] == TOY.facts.eos_ids[0]) == (got.finish[row] == "eos")
    assert set(got.finish) == {"eos", "length"}


@pytest.mark.parametrize("toy", [TOY, ToyBlock(12, 48, 3, block_length=4)])
def test_a_prompt_alone_gives_the_same_rows(toy: ToyMasked) -> None:
    together = roll(toy=toy, rows_per_batch=4)
    for at, prompt in enumerate(QUESTIONS):
        alone = roll([prompt], toy=toy)
        rows = slice(3 * at, 3 * at + 3)
        width = alone.tokens.shape[1]
        assert torch.equal(together.tokens[rows, :width], alone.tokens)
        assert torch.equal(together.trace.commit_step[rows, :width], alone.trace.commit_step)
        assert together.text[rows] == alone.text


def test_a_group_of_eight_differs_at_temperature_one_and_agrees_at_zero() -> None:
    prompt = [Prompt(id="q", index=0, text="abc")]
    for sampler in ("categorical", "gumbel"):
        warm = roll(prompt, 8, new_tokens=32, block_length=8, sampler=sampler)
        assert len({tuple(row) for row in warm.tokens.tolist()}) == 8
        again = roll(prompt, 8, new_tokens=32, block_length=8, sampler=sampler)
        assert torch.equal(warm.tokens, again.tokens)
        other = roll(prompt, 8, seed=1, new_tokens=32, block_length=8, sampler=sampler)
        assert not torch.equal(warm.tokens, other.tokens)
    for greedy in ({"temperature": 0.0}, {"top_k": 1}):
        cold = roll(prompt, 8, new_tokens=32, block_length=8, **greedy)
        assert len({tuple(row) for row in cold.tokens.tolist()}) == 1
        assert unique_share(cold) == 1 / 8
        assert collapsed_groups(cold) == 1


def test_prompts_that_do_not_fit_are_all_named() -> None:
    long = [Prompt(id=f"row-{n}", index=n, text="a" * n) for n in (5, 38, 39, 40)]
    with pytest.raises(UserError) as caught:
        roll(long)
    assert [problem.message for problem in caught.value.problems] == [
        "prompt 'row-39' has 39 tokens, and 10 new ones are asked for; the model takes 48",
        "prompt 'row-40' has 40 tokens, and 10 new ones are asked for; the model takes 48",
    ]


def test_generation_leaves_the_training_mode_as_it_was() -> None:
    seen = []
    toy = ToyMasked(12, 48, 3)
    toy.module.register_forward_pre_hook(lambda module, _: seen.append((module.training, torch.is_grad_enabled())))
    toy.module.train()
    roll(toy=toy)
    assert set(seen) == {(False, False)}
    assert toy.module.training


def test_snapshots_are_recorded_on_demand() -> None:
    section = NativeSection(new_tokens=4, temperature=1.0)
    asked = RolloutRequest(
        prompts=QUESTIONS, samples=2, settings=section.settings(), address=Address(0, "rollout"), snapshots=True
    )
    got = NativeBackend(section, TOY).generate(asked)
    assert got.trace.snapshots.row.tolist() == [row for row in range(6) for _ in range(4)]
    assert got.trace.snapshots.inputs.shape == (24, got.tokens.shape[1])


def test_no_prompts_give_an_empty_rollout() -> None:
    got = roll([])
    assert len(got) == 0
    assert got.text == ()


def test_statistics_count_what_they_say() -> None:
    got = roll(samples=4)
    statistics = rollout_statistics(got)
    assert statistics["rollout/response_length"] == pytest.approx(float(got.completion.sum()) / 12)
    assert statistics["rollout/limit_share"] == sum(finish == "length" for finish in got.finish) / 12
    assert statistics["rollout/forwards"] == 10
    assert statistics["rollout/tokens_per_forward"] == 1
    assert statistics["rollout/empty_share"] == sum(text == "" for text in got.text) / 12
    assert statistics["rollout/logp"] == pytest.approx(float(got.logp[got.completion].mean()))
    distinct = [len({got.text[4 * g + i] for i in range(4)}) for g in range(3)]
    assert statistics["rollout/unique_share"] == pytest.approx(sum(distinct) / 12)
    assert statistics["rollout/collapsed_groups"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selection": {"kind": "margin"}}, "did you mean topk-margin"),
        ({"selection": {"kind": "random", "options": {"threshold": 0.5}}}, "unknown option of 'random' 'threshold'"),
        ({"sampler": "nucleus"}, "'categorical' or 'gumbel'"),
        ({"rows_per_batch": 0}, "greater than 0"),
    ],
)
def test_the_section_refuses_what_the_decoder_would(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        NativeSection(new_tokens=8, **options)


def test_steps_over_the_whole_response_are_shared_by_its_blocks() -> None:
    protocol = NativeSection(new_tokens=12, block_length=4, steps_total=6).settings()
    assert protocol.steps_per_block == 2
    got = roll(samples=1, new_tokens=12, block_length=4, steps_total=6)
    assert (got.forwards == 6).all()
