"""Rollouts that branch: what is shared, what is recorded, what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.executor.test_estimators_grpo import context_of

from dare_algos_grpo.config import TrajectorySection
from dare_algos_grpo.estimators.trajectory import Trajectory
from dare_core.errors import UserError
from dare_core.interfaces import RolloutRequest
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Address, DecodingSettings, EosRule, Prompt, Rollout, TreeShape

PROMPTS = [Prompt(id="p", index=0, text="ab"), Prompt(id="q", index=1, text="bcd")]
SETTINGS = DecodingSettings(new_tokens=8, block_length=2, steps_per_block=2, temperature=1.0)
SHAPES = [TreeShape(2, 3, 2), TreeShape(3, 2, 4), TreeShape(2, 2, 1), TreeShape(3, 1, 2)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture
def adapter() -> ToyMasked:
    return ToyMasked(8, 12, seed=4)


def grown(adapter, shape: TreeShape, *, prompts=PROMPTS, settings: DecodingSettings = SETTINGS) -> Rollout:
    request = RolloutRequest(
        prompts=prompts, samples=shape.leaves, settings=settings, address=Address(3, "rollout", 0), tree=shape
    )
    return NativeBackend(NativeSection(new_tokens=8), adapter).generate(request)


def test_the_published_tree_has_twenty_segments_and_branches_halfway():
    shape = TreeShape(4, 4, 2)
    assert shape.leaves == 16
    assert shape.branch_points(128) == [128, 64, 0]
    assert shape.cuts(replace(SETTINGS, new_tokens=256, block_length=32, steps_per_block=16)) == [0, 128, 256]


@shapes
def test_responses_share_their_canvas_up_to_where_they_branch(adapter, shape):
    rollout = grown(adapter, shape)
    cuts, place = shape.cuts(SETTINGS), torch.arange(len(rollout)) % shape.leaves
    for level in range(shape.levels):
        for row in range(len(rollout)):
            first = row - int(place[row]) % shape.leaves_below(level)
            end = int(rollout.prompt_length[row]) + cuts[level + 1]
            for name in ("tokens", "prompt", "response"):
                assert torch.equal(getattr(rollout, name)[row, :end], getattr(rollout, name)[first, :end])
            assert torch.equal(rollout.trace.commit_step[row, :end], rollout.trace.commit_step[first, :end])


@shapes
def test_a_leaf_replays_with_the_decoders_own_probabilities(adapter, shape):
    rollout = grown(adapter, shape)
    estimator = Trajectory(TrajectorySection())
    views = estimator.plan(rollout, context_of(adapter))
    value = estimator.reduce(views, adapter.token_logp(views), rollout).value
    per_token = torch.zeros(rollout.tokens.shape, dtype=torch.float64).index_add(0, views.row, value)
    torch.testing.assert_close(per_token, rollout.logp, rtol=1e-9, atol=1e-9)
    assert torch.equal(rollout.trace.commit_step >= 0, rollout.response)


@shapes
def test_segments_chain_from_the_masked_canvas_to_the_leaves(adapter, shape):
    rollout = grown(adapter, shape)
    snapshots, mask = rollout.trace.snapshots, adapter.facts.mask_id
    nodes = sum(shape.root_branches * shape.branches**level for level in range(shape.levels))
    assert len(snapshots.row) == nodes * len(PROMPTS)
    roots = snapshots.parent < 0
    assert int(roots.sum()) == shape.root_branches * len(PROMPTS)
    assert (snapshots.inputs[roots][rollout.response[snapshots.row[roots]]] == mask).all()
    assert torch.equal(snapshots.inputs[~roots], snapshots.predicted[snapshots.parent[~roots]])
    leaves = ~torch.isin(torch.arange(len(snapshots.row)), snapshots.parent)
    assert torch.equal(snapshots.predicted[leaves], rollout.tokens[snapshots.row[leaves]])
    assert torch.equal(snapshots.row[leaves], torch.arange(len(rollout)))
    added = (snapshots.inputs == mask) & (snapshots.predicted != mask)
    assert (added.sum(dim=1) == 8 // shape.levels).all()
    torch.testing.assert_close(snapshots.confidence[added], rollout.logp[snapshots.row].exp()[added])
    assert (snapshots.confidence[~added] == 0).all()


@shapes
def test_every_segment_is_decoded_once(adapter, shape):
    rollout = grown(adapter, shape)
    nodes = len(rollout.trace.snapshots.row)
    assert int(rollout.forwards.sum()) == nodes * 8 // shape.levels


def test_a_prompt_alone_grows_the_same_tree(adapter):
    shape = SHAPES[0]
    both, alone = grown(adapter, shape), grown(adapter, shape, prompts=PROMPTS[1:])
    assert both.text[shape.leaves :] == alone.text
    assert len(set(both.text)) > shape.root_branches


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_length": 8, "steps_per_block": 8}, "cannot be shared by 2 stages of whole blocks"),
        ({"new_tokens": 7}, "cannot be shared"),
        ({"eos_rule": EosRule.STOP}, "stops early"),
        ({"guidance": 1.0}, "guidance"),
    ],
)
def test_protocols_that_cannot_branch_are_refused(adapter, change, message):
    with pytest.raises(UserError, match=message):
        grown(adapter, SHAPES[0], settings=replace(SETTINGS, **change))


def test_block_models_are_refused():
    with pytest.raises(UserError, match="only masked models branch"):
        grown(ToyBlock(8, 12, block_length=2), SHAPES[0])


def test_samples_that_are_not_the_leaves_are_refused(adapter):
    request = RolloutRequest(
        prompts=PROMPTS, samples=4, settings=SETTINGS, address=Address(3, "rollout", 0), tree=SHAPES[0]
    )
    with pytest.raises(ValueError, match="do not make trees of 6"):
        NativeBackend(NativeSection(new_tokens=8), adapter).generate(request)


def test_a_shape_without_branches_is_refused():
    with pytest.raises(ValueError, match="levels must be at least 1"):
        TreeShape(2, 2, 0)
    with pytest.raises(ValueError, match="9 steps cannot be shared by 2 stages"):
        TreeShape(2, 2, 2).branch_points(9)
