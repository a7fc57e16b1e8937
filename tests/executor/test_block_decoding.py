"""Block decoding on the tiny SDAR and LLaDA2 checkpoints: exact caches, whole blocks, mixed batches, edits, stops."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from tests.executor.decoding import ADDRESS, decode, responses, settings, unpadded
from torch import Tensor

from dare_core.backbones.packing import Packed
from dare_core.diffusion.denoise import DenoiseResult, denoise
from dare_core.diffusion.trajectory import last_edit_step, state_before, states
from dare_core.testing.toy_models import ToyBlock
from dare_core.types import DecodingSettings, EosRule, SelectionRule, Views
from dare_llada2.adapter import Llada2Adapter
from dare_llada2.config import Llada2Section
from dare_sdar.adapter import SdarAdapter
from dare_sdar.config import SdarSection

LENGTH = 4
WHOLE = {"whole_blocks": True, "schedule": "even-block"}
MIXED = [list(range(3, 3 + length)) for length in (5, 8, 0, 3, 12, 6)]


CHECKPOINTS = Path(__file__).parents[1] / "goldens" / "data" / "models"


def load(adapter: type[SdarAdapter], dtype: torch.dtype = torch.float32) -> SdarAdapter:
    section = SdarSection(path=str(CHECKPOINTS / "sdar" / "checkpoint"))
    return adapter.load(section, device=torch.device("cpu"), dtype=dtype)


@cache
def sdar() -> SdarAdapter:
    return load(SdarAdapter)


def protocol(new: int, steps: int = LENGTH, **more: object) -> DecodingSettings:
    more = {"temperature": 1.0, "selection": SelectionRule("dynamic-threshold", {"threshold": 0.3}), **WHOLE} | more
    return settings(new, LENGTH, steps, **more)


def both(prompts: list[list[int]], chosen: DecodingSettings, **more: object) -> tuple[DenoiseResult, DenoiseResult]:
    cached, plain = (decode(sdar(), prompts, chosen, cache=on, **more) for on in (True, False))
    assert (cached.cached, plain.cached) == (True, False)
    return cached, plain


def assert_same(one: DenoiseResult, other: DenoiseResult) -> None:
    for name in ("tokens", "response", "commit_step", "forwards", "stopped"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert (one.logp - other.logp).abs().max() < 1e-5


@pytest.mark.parametrize("length", range(9))
def test_cached_equals_uncached_at_every_residue_of_the_prompt(length: int) -> None:
    prompt = list(range(10, 10 + length))
    for steps, new in ((LENGTH, 9), (2, 8), (3, 3)):
        assert_same(*both([prompt], protocol(new, steps), snapshots=True))
        assert_same(*both([prompt], settings(new, LENGTH, steps, temperature=1.0)))


@pytest.mark.parametrize("rows_per_batch", [None, 1, 2, 4])
def test_rows_of_a_mixed_batch_equal_the_rows_alone_with_the_cache(rows_per_batch: int | None) -> None:
    chosen = protocol(10, eos_rule=EosRule.STOP)
    prompts = [*MIXED, MIXED[0], MIXED[4], MIXED[4]]
    together = decode(sdar(), prompts, chosen, rows_per_batch=rows_per_batch)
    assert together.cached
    for row, prompt in enumerate(prompts):
        alone = decode(sdar(), [prompt], chosen, [row], cache=False)
        assert responses(together)[row] == responses(alone)[0]
        assert unpadded(together, together.commit_step)[row] == unpadded(alone, alone.commit_step)[0]
        assert together.forwards[row] == alone.forwards[0]


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_cached_logits_equal_uncached_ones_at_every_step(dtype: torch.dtype, share: float) -> None:
    """Greedy, 24 tokens. The checkpoint's logits reach 17, so that 1e-6 of them is the rounding of float32."""
    seen: list[Tensor] = []

    class Watched(SdarAdapter):
        def _decoded_states(self, packed: Packed) -> Tensor:
            states = super()._decoded_states(packed)
            if len(packed.read):
                seen.append(self.module.lm_head(states))
            return states

    adapter = load(Watched, dtype)
    for prompt in MIXED:
        found = {}
        for on in (True, False):
            seen.clear()
            assert decode(adapter, [prompt], protocol(24, temperature=0.0), cache=on).cached == on
            found[on] = torch.cat(seen)
        assert (found[True] - found[False]).abs().max() <= share * found[False].abs().max()


def test_the_prompt_of_a_group_is_computed_once_and_finished_blocks_once_more() -> None:
    computed = []

    class Counting(SdarAdapter):
        def _decoded_states(self, packed: Packed) -> Tensor:
            computed.append(len(packed.tokens))
            return super()._decoded_states(packed)

    adapter = load(Counting)
    prompt, samples, new = list(range(3, 3 + 10)), 5, 14
    decode(adapter, [prompt] * samples, protocol(new, temperature=0.0, selection="low-confidence"))
    # Two complete blocks once; then per block: its first forward together with the clean block before it.
    blocks, steps = 4, [2, 4, 4, 4]
    wanted = [8] + [samples * LENGTH] * steps[0]
    for count in steps[1:]:
        wanted += [samples * 2 * LENGTH] + [samples * LENGTH] * (count - 1)
    assert blocks == len(steps)
    assert computed == wanted


def test_rows_that_enter_later_find_the_prompt_of_a_row_that_is_still_there() -> None:
    rule = SelectionRule("dynamic-threshold", {"threshold": 0.15})
    cached, plain = both([MIXED[4]] * 9, protocol(12, selection=rule), rows_per_batch=3)
    assert cached.forwards.unique().numel() > 1
    assert_same(cached, plain)


def test_guidance_is_decoded_without_a_cache() -> None:
    assert not decode(sdar(), [[3, 4]], protocol(4, guidance=0.5)).cached


def test_whole_blocks_are_decoded_to_their_end_and_the_asked_length_is_marked() -> None:
    for prompt in MIXED:
        result = decode(sdar(), [prompt], protocol(6))
        total = -(-(len(prompt) + 6) // LENGTH) * LENGTH
        assert result.tokens.shape[1] == total
        assert int(result.response.sum()) == total - len(prompt)
        assert int(result.asked.sum()) == 6


def test_a_partly_filled_first_block_takes_the_quotas_of_a_whole_one_and_keeps_its_prompt() -> None:
    """Two masks, quota two: one forward. The published code would let its choice run on into the prompt."""
    prompt = [7, 8, 9, 10, 11, 12]
    result = decode(sdar(), [prompt], settings(6, LENGTH, 2, temperature=1.0, **WHOLE))
    assert result.commit_step[0, 6:].tolist()[:2] == [0, 0]
    assert result.commit_step[0, 8:].bincount().tolist() == [0, 2, 2]
    assert result.tokens[0, :6].tolist() == prompt
    shared = decode(sdar(), [prompt], settings(6, LENGTH, 2, temperature=1.0, whole_blocks=True))
    assert sorted(shared.commit_step[0, 6:8].tolist()) == [0, 1], "the even schedule shares the masks there are"


@pytest.mark.parametrize("kind", ["left-to-right", "low-confidence", "dynamic-threshold", "entropy-bounded"])
def test_no_prompt_token_is_overwritten_and_no_mask_is_left(kind: str) -> None:
    for steps in (1, 2, 3, 4):
        result = decode(sdar(), MIXED, protocol(9, steps, selection=kind))
        for row, prompt in enumerate(MIXED):
            assert result.tokens[row, : len(prompt)].tolist() == prompt
        assert not (result.tokens == sdar().facts.mask_id).any()
        assert torch.equal(result.commit_step >= 0, result.response)


def test_temperature_zero_stays_greedy_in_a_group() -> None:
    result = decode(sdar(), [MIXED[0]] * 4, protocol(8, temperature=0.0))
    assert len({tuple(row) for row in responses(result)}) == 1
    sampled = decode(sdar(), [MIXED[0]] * 8, protocol(32, temperature=1.0))
    assert len({tuple(row) for row in responses(sampled)}) == 8


def test_replay_of_a_block_rollout_gives_inputs_and_log_probabilities_of_every_forward() -> None:
    """In float64: in float32 the two copies' products, of other shapes, round differently by 1e-6 of the logits."""
    adapter = load(SdarAdapter, torch.float64)
    result = decode(adapter, MIXED, protocol(10), snapshots=True, rows_per_batch=3)
    snapshots = result.snapshots
    tokens, steps, response = (t[snapshots.row] for t in (result.tokens, result.commit_step, result.response))
    seen = state_before(tokens, steps, response, snapshots.step, adapter.facts.mask_id)
    valid = (result.prompt | result.response)[snapshots.row]
    assert torch.equal(snapshots.inputs[valid], seen[valid])
    here = steps == snapshots.step[:, None]
    views = Views(
        inputs=seen,
        targets=tokens,
        valid=valid,
        scored=here,
        weight=here.float(),
        row=snapshots.row,
        draw=snapshots.step,
        prompt_length=result.prompt.sum(dim=1)[snapshots.row],
        layout=result.layout,
    )
    with torch.no_grad():
        replayed = adapter.token_logp(views).logp[here]
    torch.testing.assert_close(replayed, result.logp[snapshots.row][here], rtol=0, atol=1e-12)


def scripted_blocks(rows: list[list[float]], block_length: int) -> ToyBlock:
    bias = torch.tensor(rows, dtype=torch.float64)
    places, outputs = bias.shape
    table = torch.zeros(places, places, outputs, outputs + 1, dtype=torch.float64)
    return ToyBlock.from_tables(bias, table, block_length=block_length)


# Tokens a, b, end. Position 2 holds the end, sure before position 1; position 3 is the least sure.
ENDS_EARLY = [[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 4.0], [1.0, 0.0, 0.0]] + [[3.0, 0.0, 0.0]] * 4
END = 2


def test_stopping_early_leaves_the_block_as_it_is_once_nothing_before_the_end_is_masked() -> None:
    toy = scripted_blocks(ENDS_EARLY, 4)
    rows = {
        rule: decode(toy, [[0]], settings(7, 4, 4, eos_rule=rule, selection="left-to-right"), snapshots=True)
        for rule in (EosRule.FILL, EosRule.STOP, EosRule.STOP_EARLY)
    }
    assert [rows[rule].forwards.item() for rule in rows] == [7, 3, 2]
    early = rows[EosRule.STOP_EARLY]
    assert early.stopped.tolist() == [True]
    assert early.commit_step[0].tolist() == [-1, 0, 1, -1, -1, -1, -1, -1]
    assert early.response[0].tolist() == [False, *[True] * 3, *[False] * 4], "the terminal block is kept whole"
    assert early.tokens[0, 3].item() == END
    seen = states(early.tokens, early.commit_step, early.response, toy.facts.mask_id)
    assert torch.equal(seen[0, :2, :4], early.snapshots.inputs[:, :4])


def test_stopping_early_waits_while_something_before_the_end_is_masked() -> None:
    toy = scripted_blocks(ENDS_EARLY, 4)
    result = decode(toy, [[0]], settings(7, 4, 4, eos_rule=EosRule.STOP_EARLY, selection="low-confidence"))
    # The end commits first, then position 1; the published check runs only where an end commits, so the block is
    # decoded to its end.
    assert result.commit_step[0, 1:4].tolist() == [1, 0, 2]
    assert result.stopped.tolist() == [True]


def test_an_end_token_in_the_prompt_part_of_a_block_stops_nothing() -> None:
    toy = scripted_blocks([[3.0, 0.0, 0.0]] * 8, 4)
    result = decode(toy, [[0, END]], settings(6, 4, 4, eos_rule=EosRule.STOP))
    assert (result.stopped.item(), result.forwards.item()) == (False, 6)


EDITS = SelectionRule("joint-threshold", {"threshold": 0.3, "edit_threshold": 0.3, "max_post_steps": 3})


def test_edits_are_recorded_so_that_every_canvas_can_be_had_back() -> None:
    toy = ToyBlock(8, 24, 3, block_length=LENGTH)
    for temperature in (0.0, 1.0):
        chosen = settings(10, LENGTH, temperature=temperature, selection=EDITS, **WHOLE)
        result = decode(toy, [[0, 1], [2, 3, 4], [1] * 5], chosen, snapshots=True, rows_per_batch=2)
        assert len(result.edits) > 0
        mask, forwards = toy.facts.mask_id, int(result.forwards.max())
        seen = states(result.tokens, result.commit_step, result.response, mask, edits=result.edits, forwards=forwards)
        inputs, row, step = result.snapshots.inputs, result.snapshots.row, result.snapshots.step
        valid = (result.prompt | result.response)[row]
        assert torch.equal(inputs[valid], seen[row, step][valid])
        last = last_edit_step(result.edits, result.commit_step)
        assert ((last > result.commit_step) | (last < 0)).all(), "tokens are committed before they are edited"
        assert not (last[result.prompt] >= 0).any()
        local = [row[kept] for row, kept in zip(last, last >= 0, strict=True)]
        assert all((steps < count).all() for steps, count in zip(local, result.forwards, strict=True))


def test_a_block_without_masks_gets_no_more_forwards_than_allowed() -> None:
    toy = ToyBlock(8, 24, 3, block_length=LENGTH)
    for most in (0, 1, 2):
        rule = SelectionRule("joint-threshold", {"threshold": 0.3, "edit_threshold": 0.0, "max_post_steps": most})
        result = decode(toy, [[0] * 4], settings(8, LENGTH, temperature=1.0, selection=rule, **WHOLE))
        first, second = (result.commit_step[0, start : start + LENGTH] for start in (4, 8))
        assert second.min() - first.max() - 1 <= most
        assert result.forwards.item() - second.max() - 1 <= most


def test_decoders_without_edits_record_none() -> None:
    assert decode(sdar(), [[3]], protocol(4)).edits is None


def test_llada2_decodes_the_same_with_its_cache() -> None:
    section = Llada2Section(
        path=str(CHECKPOINTS / "llada2" / "checkpoint"), mask_id=250, eos_ids=(251,), block_length=8
    )
    adapter = Llada2Adapter.load(section, device=torch.device("cpu"), dtype=torch.float32)
    for rule in ("dynamic-threshold", SelectionRule("joint-threshold", {"edit_threshold": 0.2, "threshold": 0.2})):
        chosen = settings(20, 8, 8, temperature=1.0, selection=rule, eos_rule=EosRule.STOP_EARLY, **WHOLE)
        prompts = [list(range(3, 3 + n)) for n in (3, 8, 17)]
        cached, plain = (
            denoise(adapter, prompts, chosen, ADDRESS, range(3), cache=on, rows_per_batch=2) for on in (True, False)
        )
        assert_same(cached, plain)
