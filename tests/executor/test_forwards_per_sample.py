"""What an update costs: forwards per sample, by the engine's own counters, as the table of algorithms says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.executor.test_update_of_installed_algorithms import ALGORITHMS, prepared

from dare_core.loops.inner import InnerUpdates

RESPONSE = 4
#: views per response in an update, with responses of four tokens decoded one per forward, two blocks
VIEWS = {
    "d1": 1,
    "wd1": 1,
    "coupled-grpo": 3,
    "cj-grpo": RESPONSE,
    "justgrpo": RESPONSE,
}
#: whether a reference policy is scored by default
REFERENCE = {"d1", "coupled-grpo", "cj-grpo"}
#: whether each inner update has views of its own, whose old scores are taken before the first one
FRESH = {"d1", "coupled-grpo"}


def counted(kind, mode):
    """(forwards, rows, inner updates) of one batch."""
    learner, rows, advantages = prepared(ALGORITHMS[f"dare-algos-grpo:{kind}"], 100_000, mode)
    # Every row teaches, so that none is passed over in the second pass; and every response token is trained.
    taught = replace(advantages, value=torch.ones_like(advantages.value), usable=torch.ones_like(advantages.usable))
    rows = replace(rows, completion=rows.response)
    before = learner.engine.counters()["forwards"]
    inner = InnerUpdates(learner, rows, 0, taught)
    for objective in inner.objectives():
        inner.done(learner.update(objective))
    return learner.engine.counters()["forwards"] - before, len(rows), learner.algorithm.inner_updates


@pytest.mark.parametrize("kind", VIEWS)
def test_forwards_per_sample_are_those_of_the_table(kind):
    views = VIEWS[kind]
    forwards, rows, updates = counted(kind, "direct")
    # One with gradient per update and view; the reference's once per set of views; the old policy's of later sets.
    sets = updates if kind in FRESH or kind == "wd1" else 1
    reference = views * sets * (kind in REFERENCE)
    old = views * (updates - 1) * (kind in FRESH)
    assert forwards == rows * (views * updates + reference + old)


def test_tracerl_spends_nothing_on_steps_that_only_pad():
    learner, rows, _ = prepared(ALGORITHMS["dare-algos-grpo:tracerl"], 100_000, "direct")
    forwards = counted("tracerl", "direct")[0]
    # One token per step, no reference policy; the toy's end token is its padding.
    assert forwards == int((rows.response & (rows.tokens != learner.facts.pad_id)).sum())


@pytest.mark.parametrize("kind", ["d1", "cj-grpo", "justgrpo"])
def test_two_passes_cost_one_more_forward_per_view_and_update(kind):
    one, rows, updates = counted(kind, "direct")
    two = counted(kind, "two-pass")[0]
    # Where a ratio was clipped everywhere in a view the second pass leaves it out.
    assert one < two <= one + rows * VIEWS[kind] * updates


@pytest.mark.parametrize(
    ("kind", "views"),
    [
        ("mdpo", RESPONSE),  # every step of the rollout: fewer than `train_steps`
        ("d-treerpo", 2),  # segments per leaf of a tree of two levels that branches at its root only
    ],
)
def test_chosen_steps_and_segments_cost_one_forward_each_and_one_for_the_reference(kind, views):
    forwards, rows, updates = counted(kind, "direct")
    assert forwards == rows * views * (updates + 1)
