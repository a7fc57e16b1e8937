"""Transfer and noise schedules."""

from __future__ import annotations

import pytest
import torch

from dare_core.diffusion.schedules import alpha, alpha_slope, elbo_weight, step_quota, transfer_schedule


def test_quota_is_even_with_the_remainder_first() -> None:
    assert transfer_schedule(torch.tensor([10, 7, 2, 0]), 4).tolist() == [
        [3, 3, 2, 2],
        [2, 2, 2, 1],
        [1, 1, 0, 0],
        [0, 0, 0, 0],
    ]


def test_quota_beyond_the_plan_is_zero() -> None:
    assert step_quota(torch.tensor([5, 5]), torch.tensor([2, 5]), torch.tensor([2, 2])).tolist() == [0, 1]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_alpha_falls_from_one_to_zero_with_its_slope(schedule: str) -> None:
    time = torch.linspace(0, 1, 101, dtype=torch.float64, requires_grad=True)
    values = alpha(schedule, time)
    assert values[0].item() == pytest.approx(1)
    assert values[-1].item() == pytest.approx(0)
    (slope,) = torch.autograd.grad(values.sum(), time)
    torch.testing.assert_close(alpha_slope(schedule, time.detach()), slope)


def test_weights_are_those_of_the_elbo() -> None:
    time = torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)
    torch.testing.assert_close(elbo_weight("linear", time), 1 / time)
    # 1 - alpha = cos(x), -alpha' = pi/2 sin(x) with x = pi/2 (1 - t)
    torch.testing.assert_close(elbo_weight("cosine", time), torch.pi / 2 * torch.tan(torch.pi / 2 * (1 - time)))
    assert elbo_weight("linear", time, offset=0.1)[0].item() == pytest.approx(5)
