"""What must hold for the algorithms with a reduction of their own, whatever the numbers."""

from __future__ import annotations

import pytest
import torch
from tests.executor.policy_objectives import OWN, SCORES, drifted, loss_and_gradient, objective_of, toy_rollout

from dare_core.testing.toy_models import ToyMasked

kinds = pytest.mark.parametrize("kind", OWN)


@pytest.fixture
def adapter() -> ToyMasked:
    return ToyMasked(8, 16, seed=1)


@pytest.fixture
def policies(adapter):
    return {"old": drifted(adapter, 0.3), "reference": drifted(adapter, -0.2)}


def assert_same(left, right) -> None:
    torch.testing.assert_close(left[0].loss, right[0].loss)
    for mine, theirs in zip(left[1], right[1], strict=True):
        torch.testing.assert_close(mine, theirs)


@kinds
def test_row_order_and_padding_change_neither_loss_nor_gradient(kind, adapter, policies):
    order = torch.tensor([4, 1, 0, 5, 3, 2])
    straight = objective_of(kind, adapter, toy_rollout(), SCORES, **policies)
    other = objective_of(kind, adapter, toy_rollout(3, order), [SCORES[i] for i in order.tolist()], **policies)
    assert_same(loss_and_gradient(straight, adapter), loss_and_gradient(other, adapter))


@kinds
def test_a_failed_verdict_takes_its_row_out_of_the_batch(kind, adapter, policies):
    whole = objective_of(kind, adapter, toy_rollout(), [*SCORES[:4], None, None], **policies)
    kept = objective_of(kind, adapter, toy_rollout(0, torch.arange(4)), SCORES[:4], **policies)
    assert_same(loss_and_gradient(whole, adapter), loss_and_gradient(kept, adapter))


@kinds
def test_a_batch_of_failed_verdicts_has_a_zero_gradient(kind, adapter):
    out, found = loss_and_gradient(objective_of(kind, adapter, toy_rollout(), [None] * 6), adapter)
    assert float(out.loss.detach()) == 0.0
    assert all(torch.equal(g, torch.zeros_like(g)) for g in found)


@kinds
def test_equal_rewards_give_no_gradient(kind, adapter):
    out, found = loss_and_gradient(objective_of(kind, adapter, toy_rollout(), [0.1] * 6), adapter)
    assert float(out.loss.detach()) == 0.0
    assert all(torch.equal(g, torch.zeros_like(g)) for g in found)


@kinds
@pytest.mark.parametrize("options", [{"drop_flat_groups": True}, {"mean_reward_range": (0.2, 1.5)}])
def test_dropped_groups_leave_the_batch(kind, adapter, policies, options):
    scores = [1.0, 0.0, 0.1, 0.1, 0.0, 2.0]
    filtered = objective_of(kind, adapter, toy_rollout(), scores, **policies, **options)
    assert filtered.advantages.usable.tolist() == [True, True, False, False, True, True]
    assert filtered.advantages.statistics["dropped_share"] == pytest.approx(1 / 3)
    kept = torch.tensor([0, 1, 4, 5])
    alone = objective_of(kind, adapter, toy_rollout(0, kept), [scores[i] for i in kept.tolist()], **policies)
    assert_same(loss_and_gradient(filtered, adapter), loss_and_gradient(alone, adapter))
