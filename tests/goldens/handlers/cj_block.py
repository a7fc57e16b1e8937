"""Golden cases of CJ-GRPO on block models: replaying a served reply, and the weights of transitions."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_algos_grpo.cj_grpo import CjGrpo
from dare_algos_grpo.config import CjGrpoSection, TrajectorySection
from dare_algos_grpo.estimators.trajectory import Trajectory
from dare_algos_grpo.transitions import Transitions
from dare_core.diffusion.canvas import aligned_new_tokens
from dare_core.diffusion.layouts import block_index, positions
from dare_core.diffusion.trajectory import block_local, from_block_local
from dare_core.objectives.reductions import transition_weights
from dare_core.testing.goldens import GoldenCase
from dare_core.types import AttentionLayout, LossInputs, Rollout, Views
from tests.goldens.runner import golden
from tests.made_inputs import loss_inputs, plan_context, rollout_of, split_rows


def replayed(case: GoldenCase) -> Rollout:
    """The served replies in canonical numbers: prompts on the left as the case pads them."""
    t = case.tensors
    prompt_width = t["in.prompt_ids"].shape[1]
    steps = t["in.server_steps"]
    valid = torch.cat([t["in.attention_mask"][:, :prompt_width] > 0, steps > 0], dim=1)
    rows = split_rows(torch.cat([t["in.prompt_ids"], t["in.server_tokens"]], dim=1), prompt_width, valid)
    blocks = block_index(rows.valid, rows.prompt_length, layout_of(case))
    return rollout_of(rows, from_block_local(pad(steps - 1, (prompt_width, 0), value=-1), blocks))


def layout_of(case: GoldenCase) -> AttentionLayout:
    return AttentionLayout("block", case.settings["block_size"], case.settings["block_origin"])


@golden("algos-grpo", "trajectory", "Block-diffusion CJ-GRPO replay")
def block_replay(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    rollout, layout = replayed(case), layout_of(case)
    count, width = rollout.tokens.shape
    prompt_width = t["in.prompt_ids"].shape[1]
    budgets = [aligned_new_tokens(length, s["max_new_tokens"], s["block_size"]) for length in s["prompt_lengths"]]
    case.close("out.aligned_max_new_tokens", torch.tensor(budgets))
    case.close("out.replay_token_ids", rollout.tokens[:, prompt_width:])
    case.close("out.replay_input_ids", rollout.tokens)
    case.close("out.replay_attention_mask", rollout.valid.long())
    case.close("out.replay_position_ids", positions(rollout.valid), rollout.valid)
    case.close("out.stop_lengths", t["in.attention_mask"][:, prompt_width:].sum(dim=1))
    for origin in ("global", "response"):
        blocks = block_index(rollout.valid, rollout.prompt_length, replace(layout, origin=origin))
        case.close(f"out.block_ids_{origin}", blocks)
    blocks = block_index(rollout.valid, rollout.prompt_length, layout)
    local = block_local(rollout.trace.commit_step, blocks)
    case.close("out.local_steps", local[:, prompt_width:])
    case.close("out.num_local_steps", local.max() + 1)
    mask_id = int(t["out.noisy_before_step"][t["out.target_mask"]][0])
    views = Trajectory(TrajectorySection()).plan(rollout, plan_context(mask_id, layout=layout))
    place = views.draw * count + views.row
    steps = int(local.max()) + 1
    scored = torch.zeros(steps * count, width, dtype=torch.bool).index_copy(0, place, views.scored)
    inputs = rollout.tokens.repeat(steps, 1).index_copy(0, place, views.inputs)
    case.close("out.target_mask", scored.view(steps, count, width))
    case.close("out.trajectory", scored.view(steps, count, width).transpose(0, 1))
    case.close("out.noisy_before_step", inputs.view(steps, count, width), rollout.valid)
    spread = t["in.visible_advantages"][:, :1] * rollout.response[:, prompt_width:]
    case.close("out.replay_advantages", spread)


def block_views(case: GoldenCase) -> tuple[Rollout, Views]:
    """Rows and views of a loss case: one view per row and local step."""
    t = case.tensors
    valid, mask = t["in.attention_mask"].bool(), t["in.response_valid"]
    prompt_width = valid.shape[1] - mask.shape[1]
    rows = split_rows(torch.zeros(valid.shape, dtype=torch.int64), prompt_width, valid)
    blocks = block_index(rows.valid, rows.prompt_length, layout_of(case))
    local = torch.where(mask, t["in.local_step"], -1)
    rollout = rollout_of(rows, from_block_local(pad(local, (prompt_width, 0), value=-1), blocks))
    return rollout, Trajectory(TrajectorySection()).plan(rollout, plan_context(99, layout=layout_of(case)))


def check_block_loss(case: GoldenCase) -> None:
    """Weights of the transitions, and value and gradient of the loss they make."""
    t, s = case.tensors, case.settings
    rollout, views = block_views(case)
    width = t["in.response_valid"].shape[1]
    steps = t["out.block_step_mass"].shape[0]
    weight = transition_weights(views.scored, Transitions.of(views).transition, views.row, len(rollout))
    table = torch.zeros(len(rollout), steps, width, dtype=torch.float64)
    table[views.row, views.draw] = weight[:, -width:]
    case.close("out.block_token_weights", table)
    case.close("out.block_step_mass", table.sum(dim=(0, 2)))
    live = t["in.new_logps"].clone().requires_grad_()
    # The unified framework's loss: narrower clip, dual clip, no KL.
    options = {"clip_range": 0.2, "dual_clip": s["clip_ratio_c"], "kl_weight": 0.0, "reduction": "transition-mean"}
    loss = CjGrpo(CjGrpoSection(**options)).loss(block_inputs(case, rollout, views, live)).loss
    case.close("out.loss_dare_block", loss.detach())
    case.close("out.grad_dare_block", torch.autograd.grad(loss, live)[0])


def block_inputs(case: GoldenCase, rollout: Rollout, views: Views, live: Tensor) -> LossInputs:
    """Loss inputs whose estimates [N,L] are read from [K,B,R] tables."""
    t = case.tensors
    prompt_width = rollout.tokens.shape[1] - live.shape[2]

    def of_views(table: Tensor) -> Tensor:
        return pad(table[views.draw, views.row], (prompt_width, 0))

    made = loss_inputs(
        of_views(live),
        of_views(t["in.old_logps"]),
        advantages=t["in.advantages"],
        response=rollout.response,
        row=views.row,
        step=views.draw,
        mask=views.scored,
    )
    return replace(made, rows=rollout, views=views)
