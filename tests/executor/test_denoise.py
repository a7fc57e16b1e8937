"""The denoising loop: lengths, schedules, batches and records."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.executor.decoding import ADDRESS, decode, responses, settings, unpadded
from torch import Tensor

from dare_core.diffusion.denoise import DenoiseResult
from dare_core.diffusion.layouts import block_index
from dare_core.diffusion.rules import RULES
from dare_core.diffusion.trajectory import state_before
from dare_core.errors import NonFiniteError, UserError
from dare_core.interfaces import ModelAdapter
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Address, AttentionLayout, Views

MASKED = ToyMasked(8, 24, 3)
BLOCK = ToyBlock(8, 24, 3, block_length=4)
TOYS = [MASKED, BLOCK]
MIXED = [[0, 1, 2], [], [4], [1, 1, 2, 3, 4, 0, 2], [5, 5]]


def check_complete(result: DenoiseResult, toy: ModelAdapter, new_tokens: int, *, gaps: bool = False) -> None:
    """Nothing masked, every response token committed once, steps without gaps (forwards that commit nothing)."""
    assert (result.response.sum(dim=1) == new_tokens).all()
    assert not ((result.tokens == toy.facts.mask_id) & result.response).any()
    assert torch.equal(result.commit_step >= 0, result.response)
    for steps, forwards in zip(result.commit_step, result.forwards.tolist(), strict=True):
        used = steps[steps >= 0].unique().tolist()
        assert used == list(range(forwards)) or (gaps and used[-1] < forwards)


@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("new_tokens", range(1, 10))
def test_every_residue_of_lengths_is_decoded_completely(toy: ModelAdapter, new_tokens: int) -> None:
    prompts = [[1] * length for length in range(6)]
    for block in range(1, min(new_tokens, 5) + 1):
        result = decode(toy, prompts, settings(new_tokens, block, steps=max(1, block - 1), temperature=1.0))
        check_complete(result, toy, new_tokens)


@pytest.mark.parametrize("steps", range(1, 9))
def test_each_step_commits_its_share(steps: int) -> None:
    result = decode(MASKED, MIXED, settings(16, 8, steps, temperature=1.0))
    check_complete(result, MASKED, 16)
    wanted = [8 // steps + (i < 8 % steps) for i in range(steps)] * 2
    for row in result.commit_step:
        assert row[row >= 0].bincount().tolist() == wanted
    assert (result.forwards == 2 * steps).all()


def test_a_short_last_block_takes_no_more_forwards_than_it_has_tokens() -> None:
    result = decode(MASKED, [[0]], settings(6, 4, 3))
    assert result.commit_step[0, 1:].bincount().tolist() == [2, 1, 1, 1, 1]


def test_blocks_are_decoded_left_to_right_from_the_end_of_each_prompt() -> None:
    result = decode(MASKED, MIXED, settings(8, 4, 2, temperature=1.0))
    for row, prompt in zip(result.commit_step, MIXED, strict=True):
        steps = row[len(prompt) : len(prompt) + 8]
        assert steps[:4].max() < steps[4:].min()


def test_blocks_of_a_block_model_are_counted_from_position_zero() -> None:
    result = decode(BLOCK, [[1] * 6], settings(8, 4, 4, temperature=1.0))
    steps = result.commit_step[0, 6:]
    assert steps[:2].max() < steps[2:6].min()
    assert steps[2:6].max() < steps[6:].min()


@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("rows_per_batch", [None, 1, 2, 3])
def test_a_row_equals_the_row_decoded_alone_in_any_batch_and_order(
    toy: ModelAdapter, rows_per_batch: int | None
) -> None:
    for protocol in (
        settings(7, 3, 2, temperature=0.8, top_p=0.9),
        settings(7, 3, 3, temperature=1.0, selection="random"),
        settings(7, 3, 2, temperature=1.0, guidance=0.5),
    ):
        together = decode(toy, MIXED, protocol, [10, 11, 12, 13, 14], rows_per_batch=rows_per_batch)
        order = [3, 0, 4, 2, 1]
        shuffled = decode(toy, [MIXED[i] for i in order], protocol, [10 + i for i in order], rows_per_batch=2)
        for row, prompt in enumerate(MIXED):
            alone = decode(toy, [prompt], protocol, [10 + row])
            for result, at in ((together, row), (shuffled, order.index(row))):
                assert responses(result)[at] == responses(alone)[0]
                assert unpadded(result, result.commit_step)[at] == unpadded(alone, alone.commit_step)[0]
                assert unpadded(result, result.logp)[at] == pytest.approx(unpadded(alone, alone.logp)[0], abs=1e-12)
                assert result.forwards[at] == alone.forwards[0]


def test_waiting_rows_enter_as_others_finish() -> None:
    widths = []

    class Watched(ToyMasked):
        def logits(self, tokens: Tensor, *rest: Tensor, **more: object) -> Tensor:
            widths.append(len(tokens))
            return super().logits(tokens, *rest, **more)

    toy = Watched(8, 24, 3)
    protocol = settings(6, 6, 6, temperature=1.0, selection="confidence-threshold")
    protocol = replace(protocol, selection=replace(protocol.selection, options={"threshold": 0.3}))
    result = decode(toy, [[i % 5] for i in range(9)], protocol, rows_per_batch=3)
    assert result.forwards.unique().numel() > 1, "rows must differ in length for this test to mean something"
    assert sum(widths) == result.forwards.sum()
    entering = widths[: len(widths) - 5]
    assert set(entering) == {3}, "the batch stays full while rows wait"


def test_only_undecided_positions_of_the_block_are_scored() -> None:
    scored = []

    class Watched(ToyMasked):
        def logits(self, tokens: Tensor, valid: Tensor, where: Tensor, **more: object) -> Tensor:
            scored.append(where.sum(dim=1).tolist())
            return super().logits(tokens, valid, where, **more)

    decode(Watched(8, 24, 3), [[0, 1], [2]], settings(5, 3, 3))
    assert scored == [[3, 3], [2, 2], [1, 1], [2, 2], [1, 1]]


@pytest.mark.parametrize("kind", sorted(kind for kind, rule in RULES.items() if rule.noise == "mask"))
def test_every_rule_decodes_completely_and_repeatably(kind: str) -> None:
    protocol = settings(8, 4, 2, temperature=1.0, selection=kind)
    first, second = (decode(MASKED, MIXED, protocol) for _ in range(2))
    check_complete(first, MASKED, 8, gaps=RULES[kind].edits or RULES[kind].selector == "independent")
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.commit_step, second.commit_step)


@pytest.mark.parametrize("sampler", ["categorical", "gumbel"])
def test_samples_differ_and_a_seed_repeats_them(sampler: str) -> None:
    protocol = settings(12, temperature=1.0)
    base = decode(MASKED, [[0, 1]] * 8, protocol, sampler=sampler)
    assert len({tuple(row) for row in responses(base)}) == 8
    assert torch.equal(decode(MASKED, [[0, 1]] * 8, protocol, sampler=sampler).tokens, base.tokens)
    for other in (Address(6, "rollout", 2), Address(5, "eval", 2), Address(5, "rollout", 3)):
        assert not torch.equal(
            decode(MASKED, [[0, 1]] * 8, protocol, sampler=sampler, address=other).tokens, base.tokens
        )


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}])
def test_temperature_zero_and_top_k_one_are_greedy(greedy: dict[str, float]) -> None:
    result = decode(MASKED, [[0, 1]] * 4, settings(6, 2, 2, **greedy))
    assert len({tuple(row) for row in responses(result)}) == 1
    row = result.tokens[:1]
    for step in range(int(result.forwards[0])):
        seen = state_before(row, result.commit_step[:1], result.response[:1], step, MASKED.facts.mask_id)
        here = result.commit_step[:1] == step
        valid = torch.ones_like(here)
        logits = MASKED.logits(seen, valid, here, layout=AttentionLayout(), prompt_length=torch.tensor([2]))
        assert torch.equal(logits.argmax(dim=1), row[here])


@pytest.mark.parametrize("toy", TOYS)
def test_replaying_commit_steps_gives_the_inputs_and_log_probabilities_of_every_forward(toy: ModelAdapter) -> None:
    result = decode(toy, MIXED, settings(7, 4, 3, temperature=1.0), snapshots=True, rows_per_batch=2)
    snapshots = result.snapshots
    assert len(snapshots.row) == result.forwards.sum()
    order = [(int(r), int(s)) for r, s in zip(snapshots.row, snapshots.step, strict=True)]
    assert order == [(r, s) for r in range(len(MIXED)) for s in range(int(result.forwards[r]))]
    tokens, steps, response = (t[snapshots.row] for t in (result.tokens, result.commit_step, result.response))
    seen = state_before(tokens, steps, response, snapshots.step, toy.facts.mask_id)
    assert torch.equal(snapshots.inputs, seen)
    here = steps == snapshots.step[:, None]
    assert torch.equal(snapshots.predicted[here], tokens[here])
    views = Views(
        inputs=seen,
        targets=tokens,
        valid=(result.prompt | result.response)[snapshots.row],
        scored=here,
        weight=here.double(),
        row=snapshots.row,
        draw=snapshots.step,
        prompt_length=result.prompt.sum(dim=1)[snapshots.row],
        layout=result.layout,
    )
    replayed = toy.token_logp(views).logp[here]
    torch.testing.assert_close(replayed, result.logp[snapshots.row][here])
    torch.testing.assert_close(snapshots.confidence[here], replayed.exp())


def test_snapshots_guess_every_masked_position_and_change_no_token() -> None:
    protocol = settings(6, 3, 2, temperature=1.0)
    plain, recorded = decode(MASKED, MIXED, protocol), decode(MASKED, MIXED, protocol, snapshots=True)
    assert torch.equal(plain.tokens, recorded.tokens)
    assert torch.equal(plain.commit_step, recorded.commit_step)
    snapshots = recorded.snapshots
    masked = snapshots.inputs == MASKED.facts.mask_id
    assert not (snapshots.predicted == MASKED.facts.mask_id).any()
    assert torch.equal(snapshots.predicted[~masked], snapshots.inputs[~masked])
    assert torch.equal(snapshots.confidence > 0, masked)
    assert plain.snapshots is None


def test_prompts_may_hold_mask_tokens() -> None:
    mask = MASKED.facts.mask_id
    result = decode(MASKED, [[0, mask, 1]], settings(4))
    assert result.tokens[0, :3].tolist() == [0, mask, 1]
    assert (result.commit_step[0, :3] == -1).all()


def test_guidance_contrasts_with_a_masked_prompt() -> None:
    weight, prompt = 1.5, [3, 4]
    result = decode(MASKED, [prompt], settings(3, 3, 1, guidance=weight))
    mask = MASKED.facts.mask_id
    where = torch.tensor([[False, False, True, True, True]])
    inputs = (torch.tensor([[*prompt, mask, mask, mask]]), torch.full((1, 5), mask))
    with torch.no_grad():
        seeing, blind = (
            MASKED.logits(x, torch.ones_like(where), where, layout=AttentionLayout(), prompt_length=torch.tensor([2]))
            for x in inputs
        )
    guided = blind + (weight + 1) * (seeing - blind)
    assert result.tokens[0, 2:].tolist() == guided.argmax(dim=1).tolist()
    torch.testing.assert_close(result.logp[0, 2:], guided.log_softmax(dim=1).amax(dim=1))
    assert result.forwards.tolist() == [1]


def test_unused_rows_of_the_output_head_are_never_proposed() -> None:
    toy = ToyMasked(8, 24, 3)
    toy.facts = replace(toy.facts, head_rows_unused=4)
    result = decode(toy, MIXED, settings(8, temperature=2.0))
    assert result.tokens[result.response].max() < 4


def test_logits_that_are_not_finite_stop_the_decoder_with_the_sample_named() -> None:
    toy = ToyMasked(8, 24, 3)
    with torch.no_grad():
        toy.module.bias[5, 2] = float("nan")
    with pytest.raises(NonFiniteError, match="sample 71 at denoising forward 0"):
        decode(toy, [[0], [0, 1, 2, 3]], settings(4), [70, 71])


def test_an_unknown_rule_is_refused_before_any_forward() -> None:
    with pytest.raises(UserError, match="unknown selection rule 'entropi'"):
        decode(MASKED, [[0]], settings(4, selection="entropi"))


def test_no_prompts_give_no_rows() -> None:
    result = decode(MASKED, [], settings(4), [])
    assert result.tokens.shape == (0, 4)
    assert decode(MASKED, [], settings(4), [], address=ADDRESS, snapshots=True).snapshots is None


def test_block_local_commit_steps_fit_the_layout() -> None:
    result = decode(BLOCK, MIXED, settings(9, 4, 3, temperature=1.0))
    valid = result.prompt | result.response
    blocks = block_index(valid, result.prompt.sum(dim=1), result.layout)
    assert result.layout == AttentionLayout("block", 4)
    for steps, index in zip(result.commit_step, blocks, strict=True):
        spans = [steps[(index == block) & (steps >= 0)] for block in index[steps >= 0].unique()]
        for earlier, later in pairwise(spans):
            assert earlier.max() < later.min()
