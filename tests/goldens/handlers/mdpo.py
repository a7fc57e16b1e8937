"""Golden cases of MDPO: step-wise advantages, the choice of steps, the loss of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dare_algos_grpo.config import MdpoSection
from dare_algos_grpo.mdpo import Mdpo, step_key
from dare_core.objectives.advantages import group_relative
from dare_core.objectives.steps import most_important, step_values
from dare_core.testing.goldens import GoldenCase
from dare_core.types import LossInputs, Snapshots, Trace
from tests.goldens.handlers.algos_grpo import adjacent_groups, leaf
from tests.goldens.runner import golden
from tests.made_inputs import loss_inputs, rollout_of


@golden("algos-grpo", "advantage", "MDPO step-wise advantage")
def stepwise_advantages(case: GoldenCase) -> None:
    rewards, s = case.tensors["in.step_rewards"], case.settings
    rows, steps = rewards.shape
    values = step_values(rewards, torch.ones_like(rewards, dtype=torch.bool))
    case.close("out.raw_step_value", values)
    step = torch.arange(steps).repeat(rows)
    key = step_key(adjacent_groups(rows, s["num_generations"]).repeat_interleave(steps), step)

    def advantages(**options: Any) -> Tensor:
        return group_relative(values.flatten(), key, **options).view(rows, steps)

    case.close("out.adv_original", advantages(scale="std", eps=s["std_eps_original"]))
    unified = advantages(scale="std", eps=s["std_eps_dare"])
    case.close("out.adv_dare", unified)
    case.close("out.adv_dare_centered", advantages())
    most = s["sample_train_steps"]
    case.close("out.selected_steps_dare", most_important(unified.abs().flatten(), step, most).sort().values)
    first = advantages(scale="std", eps=s["std_eps_original"])[: s["num_generations"]]
    chosen = most_important(first.abs().flatten(), step[: first.numel()], most)
    case.close("out.selected_steps_original_group0", chosen)


def step_inputs(case: GoldenCase, hidden: Tensor, trained: Tensor) -> LossInputs:
    """One step of each row that hides ``hidden`` [B,R], of which ``trained`` [B,R] enter the loss."""
    t = case.tensors
    rows = torch.arange(len(hidden))
    given = loss_inputs(
        leaf(t["in.new_logps"]),
        t["in.old_logps"],
        reference=t["in.ref_logps"],
        advantages=t["in.advantages"],
        row=rows,
        step=torch.zeros_like(rows),
        mask=hidden,
    )
    blank = torch.zeros(hidden.shape, dtype=torch.int64)
    snapshots = Snapshots(inputs=blank, predicted=blank, confidence=blank.float(), row=rows, step=rows * 0)
    rollout = rollout_of(given.rows, blank)
    views = replace(given.views, weight=torch.where(hidden, t["in.confidence"], 0.0))
    trace = Trace(commit_step=blank, snapshots=snapshots)
    live = replace(given.live, mask=trained)
    return replace(given, rows=replace(rollout, trace=trace), views=views, live=live)


@golden("algos-grpo", "loss", "MDPO loss for one diffusion step")
def mdpo_loss(case: GoldenCase) -> None:
    s = case.settings
    hidden = case.tensors["in.input_ids"][:, -s["R"] :] == s["mask_token_id"]
    # The shifted branch rolls loss, mask and confidence left by one and drops the last place: the first one is lost.
    shifted = hidden & (torch.arange(s["R"]) > 0)
    for name, mask, options in (
        ("llada", hidden, {}),
        ("dream_shift", shifted, {}),
        ("dare", hidden, {"count_eps": 0.0}),
    ):
        given = step_inputs(case, hidden, mask)
        algorithm = Mdpo(MdpoSection(clip_range=s["epsilon"], kl_weight=s["beta"], **options))
        loss = algorithm.loss(given).loss
        case.close(f"out.loss_{name}", loss.detach())
        case.close(f"out.grad_{name}", torch.autograd.grad(loss, given.live.value)[0])
    case.close("out.lambda_dare", algorithm.length_scale(given))
