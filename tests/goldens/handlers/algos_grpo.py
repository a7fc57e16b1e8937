"""Golden cases of advantages, corruptions, log-probabilities, trajectories and losses of the GRPO family."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dare_algos_grpo.cj_grpo import CjGrpo
from dare_algos_grpo.config import (
    CjGrpoSection,
    ClippedPolicySection,
    CoupledGrpoSection,
    CoupledSection,
    D1Section,
    OneStepSection,
    TrajectorySection,
)
from dare_algos_grpo.coupled_grpo import CoupledGrpo
from dare_algos_grpo.d1 import D1
from dare_algos_grpo.estimators.coupled import Coupled
from dare_algos_grpo.estimators.one_step import OneStep
from dare_algos_grpo.estimators.token_sums import weighted_token_sum
from dare_algos_grpo.estimators.trajectory import Trajectory
from dare_algos_grpo.policy import ClippedPolicy
from dare_core.diffusion.completion import completion_mask
from dare_core.diffusion.corruption import build_views
from dare_core.objectives import reductions
from dare_core.objectives.advantages import group_relative, group_statistics
from dare_core.objectives.clips import clipped_surrogate
from dare_core.objectives.kl import KL_FORMS, k3
from dare_core.objectives.ratios import token_ratio
from dare_core.testing.goldens import GoldenCase
from dare_core.types import LossInputs, Rows, Views
from tests.goldens.handlers.cj_block import check_block_loss
from tests.goldens.linearised_kl import linearised_difference
from tests.goldens.runner import golden
from tests.made_inputs import loss_inputs, plan_context, rollout_of, scores_from_logits, split_rows


def adjacent_groups(count: int, size: int) -> Tensor:
    """[count] group ids of rows whose groups are adjacent."""
    return torch.arange(count) // size


def leaf(tensor: Tensor) -> Tensor:
    """A copy that collects a gradient."""
    return tensor.clone().requires_grad_()


@golden("algos-grpo", "advantage", "Group-relative advantage that is only mean-centred")
def centred(case: GoldenCase) -> None:
    raw, weights = case.tensors["in.rewards_per_func"], case.tensors["in.reward_weights"]
    rewards = (raw.nan_to_num(0.0) * weights).sum(dim=1)
    case.close("out.rewards", rewards)
    group = adjacent_groups(len(rewards), case.settings["num_generations"])
    case.close("out.advantages", group_relative(rewards, group))
    case.close("out.group_std", group_statistics(rewards, group, torch.ones_like(group, dtype=torch.bool)).std())


@golden("algos-grpo", "advantage", "Leave-one-out group baseline")
def leave_one_out(case: GoldenCase) -> None:
    rewards = case.tensors["in.rewards"]
    group = adjacent_groups(len(rewards), case.settings["num_generations"])
    case.close("out.advantages", group_relative(rewards, group, baseline="leave-one-out"))
    scaled = group_relative(rewards, group, baseline="leave-one-out", scale="std", eps=case.settings["std_eps"])
    case.close("out.advantages_scaled", scaled)


@golden("algos-grpo", "advantage", "GRPO outcome advantage of DARE")
def unified_advantages(case: GoldenCase) -> None:
    mask, group = case.tensors["in.response_mask"], case.tensors["in.group_index"]
    rewards = case.tensors["in.token_level_rewards"].sum(dim=1)

    def spread(**options: Any) -> Tensor:
        return group_relative(rewards, group, single="raw", **options)[:, None] * mask

    case.close("out.adv_std_normalised", spread(scale="std", eps=case.settings["epsilon"]))
    case.close("out.adv_centered", spread())
    case.close("out.adv_rloo", spread(baseline="leave-one-out"))


@golden("algos-grpo", "mask", "Completion mask")
def completion(case: GoldenCase) -> None:
    ids = case.tensors["in.completion_ids"]
    mask = completion_mask(ids, torch.ones_like(ids, dtype=torch.bool), [case.settings["eos_token_id"]])
    case.close("out.mask_d1", mask.long())
    case.close("out.mask_dtree", (mask & (ids != case.settings["mask_id"])).float())


@golden("algos-grpo", "kl", "Per-token KL surrogates")
def kl_forms(case: GoldenCase) -> None:
    d, advantage = case.tensors["in.logp"] - case.tensors["in.ref_logp"], case.tensors["in.advantages"]
    for name, form in (("k1", "k1"), ("abs", "abs"), ("k2", "k2"), ("k3", "k3-clamped")):
        case.close(f"out.{name}", KL_FORMS[form](d))
        case.close(f"out.dare_dllm_{name}", KL_FORMS[form](linearised_difference(d, advantage)))


@golden("algos-grpo", "reduction", "Reduction of a [B, R] token loss")
def aggregation(case: GoldenCase) -> None:
    loss, mask = case.tensors["in.loss"], case.tensors["in.mask"].bool()
    case.close("out.token_mean", reductions.token_mean(loss, mask))
    case.close("out.seq_mean_token_sum", reductions.sequence_mean_token_sum(loss, mask))
    case.close("out.seq_mean_token_sum_norm", reductions.fixed_length(loss, mask, loss.shape[1]))
    by_row = reductions.sequence_mean_token_mean(loss, mask)
    case.close("out.seq_mean_token_mean_nonempty_rows", by_row)
    # Published code divides 0 by 0 on a row without tokens; such rows are left out here.
    has_empty_row = not bool(mask.any(dim=1).all())
    case.close("out.seq_mean_token_mean", by_row * float("nan") if has_empty_row else by_row)


@golden("algos-grpo", "corruption", "d1 corruption")
def one_step_corruption(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    estimator = OneStep(OneStepSection(prompt_mask=s["p_mask_prompt"]))
    context = plan_context(s["mask_id"])
    whole = split_rows(t["in.ids"], s["prompt_length"])
    case.close("out.noisy", estimator.views(whole, context, t["in.uniform"]).inputs)
    case.close("out.p_mask", whole.response + s["p_mask_prompt"] * whole.prompt.float())
    rows = split_rows(t["in.ids"], s["prompt_length"], t["in.attention_mask"].bool())
    width = rows.tokens.shape[1] - t["in.uniform_dare"].shape[1]
    noisy = estimator.views(rows, context, torch.nn.functional.pad(t["in.uniform_dare"], (0, width))).inputs
    case.close("out.noisy_dare", noisy)
    case.close("out.mask_dare", noisy == s["mask_id"])
    case.close("out.p_mask_dare", rows.response + s["p_mask_prompt"] * rows.prompt.float())


@golden("algos-grpo", "logp", "d1 one-step log-probs")
def one_step_logp(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    updates, count, width = t["in.uniform"].shape
    response_width = t["out.logps"].shape[2]
    estimator = OneStep(OneStepSection(prompt_mask=s["p_mask_prompt"]))
    context = plan_context(s["mask_id"])
    rows = split_rows(t["in.ids"], width - response_width)
    logits = t["in.logits"].view(updates, count, width, -1)
    plans = [estimator.views(rows, context, uniform) for uniform in t["in.uniform"]]
    case.close("out.model_input", torch.cat([views.inputs for views in plans]))
    estimates = [estimator.reduce(v, scores_from_logits(v, x), rows).value for v, x in zip(plans, logits, strict=True)]
    case.close("out.logps", torch.stack(estimates)[:, :, -response_width:])
    # The unified framework: padding removed, so only valid positions carry a number.
    valid = t["in.attention_mask"].bool()
    packed = split_rows(t["in.ids"], width - response_width, valid)
    hidden = t["in.mask_indices"]
    views = build_views(
        packed,
        hidden,
        mask_id=s["mask_id"],
        layout=context.layout,
        row=torch.arange(count),
        draw=torch.zeros(count, dtype=torch.int64),
        scored=hidden,
        weight=torch.where(hidden, 1 / t["in.p_mask"], 0.0),
    )
    scores = scores_from_logits(views, logits[0])
    value = estimator.reduce(plans[0], scores_from_logits(plans[0], logits[0]), packed).value[:, None, -response_width:]
    case.close("out.logps_dare", value, packed.response[:, None, -response_width:])
    total = weighted_token_sum(views, scores, packed).sum(dim=1) / response_width
    case.close("out.loss_per_sample_dare", total[:, None, None].expand(-1, 1, response_width))


@golden("algos-grpo", "corruption", "Coupled-GRPO corruption")
def coupled_corruption(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    count = len(t["in.ids"])
    rows = split_rows(t["in.ids"], s["prompt_length"])
    for suffix in ("", "_accumulate"):
        uniform = t[f"in.uniform{suffix}"].repeat(count // len(t[f"in.uniform{suffix}"]), 1)
        views = coupled_views(rows, uniform, t[f"in.ratio{suffix}"], s["mask_id"])
        hidden = by_view(views.inputs == s["mask_id"])
        case.close(f"out.noisy{suffix}", by_view(views.inputs))
        case.close(f"out.second_view_mask{suffix}", hidden[1])
        case.close(f"out.weights{suffix}", by_view(views.weight).amax(dim=(1, 2)))
        case.close(f"out.views_overlap{suffix}", (hidden[1] & hidden[2]).any())
        case.close(f"out.views_cover_completion{suffix}", ((hidden[1] | hidden[2]) == rows.response).all())
    valid = t["in.attention_mask_dare"].bool()[None]
    alone = split_rows(t["in.ids"][:1], s["prompt_length"], valid)
    views = coupled_views(alone, t["in.uniform_dare"], t["in.ratio_dare"], s["mask_id"])
    case.close("out.noisy_dare", views.inputs, valid)
    case.close("out.mask_dare", views.scored, valid)
    case.close("out.p_mask_dare", torch.where(views.scored, 1 / views.weight, 0.0), valid)


def coupled_views(rows: Rows, uniform: Tensor, ratio: Tensor, mask_id: int) -> Views:
    """The coupled plan for recorded draws."""
    return Coupled(CoupledSection()).views(rows, plan_context(mask_id), uniform, ratio.expand(len(rows)))


def by_view(tensor: Tensor) -> Tensor:
    """[B*3,L] in (row, draw) order as [3,B,L]."""
    return tensor.view(-1, 3, tensor.shape[1]).transpose(0, 1)


@golden("algos-grpo", "logp", "Coupled-GRPO per-token log-prob")
def coupled_logp(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    updates, count, width = t["in.uniform"].shape
    response_width = t["out.logps"].shape[2]
    estimator = Coupled(CoupledSection())

    def estimate(rows: Rows, update: int, logits: Tensor) -> Tensor:
        views = coupled_views(rows, t["in.uniform"][update], t["in.ratio"][update], s["mask_id"])
        mine = logits[update].transpose(0, 1).reshape(count * 3, width, -1)
        return estimator.reduce(views, scores_from_logits(views, mine), rows).value

    logits = t["in.logits"].view(updates, 3, count, width, -1)
    rows = split_rows(t["in.ids"], width - response_width)
    # The family of this case scores token j by the output at j - 1.
    aligned = logits.roll(1, dims=3)
    found = torch.stack([estimate(rows, update, aligned) for update in range(updates)], dim=1)
    case.close("out.logps", found[:, :, -response_width:])
    valid = t["in.attention_mask"].bool()
    case.close(
        "out.logps_dare_fullseq", estimate(split_rows(t["in.ids"], width - response_width, valid), 0, logits), valid
    )


@golden("algos-grpo", "trajectory", "CJ-GRPO: from the recorded step map")
def trajectory_states(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    steps, count, width, _ = t["in.logits"].shape
    response_width = t["in.step_map"].shape[1]
    commit_step = torch.full((count, width), -1).index_copy(
        1, torch.arange(width - response_width, width), t["in.step_map"]
    )
    valid = t["in.attention_mask"].bool()
    rows = rollout_of(split_rows(t["in.ids"], width - response_width, valid), commit_step)
    estimator = Trajectory(TrajectorySection())
    views = estimator.plan(rows, plan_context(s["mask_id"]))

    def by_step(tensor: Tensor) -> Tensor:
        return tensor.view(count, steps, width).transpose(0, 1)

    assert views.draw.tolist() == list(range(steps)) * count
    case.close("out.states", by_step(views.inputs))
    case.close("out.unmask_positions", views.scored.view(count, steps, width))
    packed = torch.stack([state[valid] for state in by_step(views.inputs)])
    case.close("out.packed_inputs_dare", packed)
    scores = scores_from_logits(views, t["in.logits"].transpose(0, 1).reshape(count * steps, width, -1))
    value = estimator.reduce(views, scores, rows).value.view(count, steps, width)[:, :, -response_width:]
    scored = views.scored.view(count, steps, width)[:, :, -response_width:]
    # Published code reads every position at every step; only those committed at the step enter a loss.
    case.close("out.logps_all", value.transpose(0, 1), scored.transpose(0, 1))
    case.close("out.logps_dare", value, scored)
    case.close("out.logps_dare_single_step", value[:, 1], scored[:, 1])
    case.close("out.logps_selected", value.sum(dim=1))
    case.close("out.collapsed_dare", value.sum(dim=1))


def section(cls: type[ClippedPolicySection], case: GoldenCase, **options: Any) -> Any:
    """The algorithm's options with the case's clip range and KL weight."""
    s = case.settings
    low = s.get("epsilon", s.get("epsilon_low"))
    return cls(**{"clip_range": low, "clip_range_high": s.get("epsilon_high"), "kl_weight": s["beta"], **options})


def check_loss(case: GoldenCase, algorithm: ClippedPolicy, inputs: LossInputs, loss: str, gradient: str) -> Any:
    """Value and gradient of the algorithm's loss."""
    out = algorithm.loss(inputs)
    (found,) = torch.autograd.grad(out.loss, inputs.live.value)
    case.close(loss, out.loss.detach())
    case.close(gradient, found)
    return out


@golden("algos-grpo", "loss", "diffu-GRPO (d1) loss")
def d1_loss(case: GoldenCase) -> None:
    t = case.tensors
    update = case.settings["iteration_index"]
    shared = {"advantages": t["in.advantages"], "completion": t["in.completion_mask"].bool()}
    inputs = loss_inputs(
        leaf(t["in.new_logps"]), t["in.old_logps"][update], reference=t["in.ref_logps"][update], **shared
    )
    out = check_loss(case, D1(section(D1Section, case)), inputs, "out.loss", "out.grad_new_logps")
    case.close("out.mean_kl", torch.tensor(out.metrics["kl"].value))
    # What the authors log as clip fraction counts the ratios whose unclipped objective is the smaller one.
    case.close("out.clip_fraction", torch.tensor(out.metrics["outside_fraction"].value))
    first = loss_inputs(leaf(t["in.new_logps"]), **shared)
    algorithm = D1(section(D1Section, case, kl_weight=0.0))
    check_loss(case, algorithm, first, "out.loss_first_step", "out.grad_first_step")


@golden("algos-grpo", "loss", "Coupled-GRPO loss")
def coupled_loss(case: GoldenCase) -> None:
    t = case.tensors
    update = case.settings["iteration_index"]
    old, reference = t["in.old_logps"][:, update], t["in.ref_logps"][:, update]
    algorithm = CoupledGrpo(section(CoupledGrpoSection, case))

    def inputs(completion: Tensor) -> LossInputs:
        live = leaf(t["in.new_logps"])
        return loss_inputs(live, old, reference=reference, advantages=t["in.advantages"], completion=completion.bool())

    check_loss(case, algorithm, inputs(t["in.completion_mask"]), "out.loss", "out.grad_new_logps")
    empty = algorithm.loss(inputs(torch.zeros_like(t["in.completion_mask"]))).loss
    case.close("out.loss_empty_mask", empty.detach())


@golden("algos-grpo", "loss", "CJ-GRPO: for every denoising step")
def cj_loss(case: GoldenCase) -> None:
    t = case.tensors
    steps, count, width = t["in.new_logps"].shape

    def inputs() -> LossInputs:
        row, step = torch.arange(count).repeat_interleave(steps), torch.arange(steps).repeat(count)

        def by_row(tensor: Tensor) -> Tensor:
            return tensor.transpose(0, 1).reshape(count * steps, width)

        return loss_inputs(
            leaf(by_row(t["in.new_logps"])),
            by_row(t["in.old_logps"]),
            reference=by_row(t["in.ref_logps"]),
            advantages=t["in.advantages"],
            row=row,
            step=step,
            mask=t["in.step_map"][row] == step[:, None],
        )

    unified = {"clip_range": 0.2, "kl_weight": 0.0, "dual_clip": case.settings["clip_ratio_c"]}
    for name, options in (("original", {}), ("dare_mdlm", unified)):
        given = inputs()
        out = CjGrpo(section(CjGrpoSection, case, **options)).loss(given)
        (found,) = torch.autograd.grad(out.loss, given.live.value)
        case.close(f"out.loss_{name}", out.loss.detach())
        case.close(f"out.grad_{name}", found.view(count, steps, width).transpose(0, 1))
    check_block_loss(case)


@golden("algos-grpo", "loss", "DARE's PPO loss (dual clip)")
def dual_clip_loss(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    mask, old, advantage = t["in.response_mask"], t["in.old_logps"], t["in.advantages"]
    width = mask.shape[1]
    forms = {
        "token_mean": reductions.token_mean,
        "seq_mean_token_sum": reductions.sequence_mean_token_sum,
        "seq_mean_token_mean": reductions.sequence_mean_token_mean,
        "seq_mean_token_sum_norm": lambda loss, mask: reductions.fixed_length(loss, mask, width),
    }
    for name, reduce in forms.items():
        live = leaf(t["in.new_logps"])
        surrogate = clipped_surrogate(
            token_ratio(live, old), advantage, s["clip_low"], s["clip_high"], s["clip_ratio_c"]
        )
        loss = reduce(surrogate.loss, mask)
        case.close(f"out.loss_{name}", loss.detach())
        case.close(f"out.grad_{name}", torch.autograd.grad(loss, live)[0])
    case.close("out.clip_fraction", reductions.token_mean(surrogate.clipped.float(), mask))
    case.close("out.clip_fraction_lower", reductions.token_mean(surrogate.capped.float(), mask))
    for name, other in (("old", old), ("ref", t["in.ref_logps"])):
        case.close(f"out.approx_kl_{name}", reductions.token_mean(k3(t["in.new_logps"] - other), mask))
