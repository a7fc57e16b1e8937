"""Golden cases of TraceRL: filtered advantages, rows of a trace, losses."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_algos_grpo.config import TraceRlSection, TrajectorySection
from dare_algos_grpo.estimators.trajectory import Trajectory
from dare_algos_grpo.tracerl import TraceRl
from dare_core.backbones.attention import segment_plan
from dare_core.diffusion.layouts import block_index, positions
from dare_core.objectives.advantages import group_relative, kept_groups
from dare_core.objectives.gae import trace_advantages
from dare_core.testing.goldens import GoldenCase
from dare_core.types import AttentionLayout, LossInputs, Rows, Views
from tests.goldens.handlers.algos_grpo import leaf
from tests.goldens.runner import golden
from tests.made_inputs import loss_inputs, plan_context, rollout_of, scores_from_logits, split_rows


@golden("algos-grpo", "advantage", "TraceRL rewards: z-score")
def zscore_and_filter(case: GoldenCase) -> None:
    correct, s = case.tensors["in.correctness"], case.settings
    prompts, size = correct.shape
    group = torch.arange(prompts).repeat_interleave(size)
    section = TraceRlSection()
    scores, usable = correct.flatten(), torch.ones(prompts * size, dtype=torch.bool)
    found = group_relative(scores, group, scale=section.scale, eps=section.scale_eps)
    case.close("out.advantages", found.view(prompts, size))
    bounds = (s["filter_low"], s["filter_high"])
    assert section.mean_reward_range == bounds
    for name, options in (
        ("math", {"mean_range": bounds, "drop_flat": False}),
        ("code", {"mean_range": None, "drop_flat": True}),
    ):
        kept = kept_groups(scores, group, usable, **options).view(prompts, size)
        case.close(f"out.kept_{name}", kept.any(dim=1))
        assert torch.equal(kept.any(dim=1), kept.all(dim=1))


@golden("algos-grpo", "advantage", "TraceRL with a value model")
def values_of_a_trace(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    mask, row = t["in.p_mask"], t["in.seq_ids"]
    step = pad(t["in.step_map"], (mask.shape[1] - t["in.step_map"].shape[1], 0))[row]
    options = {"gamma": s["gamma"], "lam": s["lambda"]}
    advantages, returns = trace_advantages(t["in.reward"], t["in.old_values"], mask, step, row, **options)
    case.close("out.advantages", advantages)
    case.close("out.returns", returns)


@golden("algos-grpo", "trajectory", "TraceRL for full-attention models")
def rows_of_a_masked_trace(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    start, ids = s["start_pos"], t["in.ids"]
    # The first snapshot that shows a token is its commit step.
    step = (t["in.history"] == s["mask_id"]).sum(dim=0)[:, start:]
    case.close("out.step_map", step)
    views = trace_views(case, split_rows(ids, start), step)
    case.close("out.noisy_rows", views.inputs)
    case.close("out.target_rows", views.scored)
    case.close("out.row_owner", views.row)
    merged = torch.full_like(step, -1)
    everything = Trajectory(TrajectorySection(merge_steps=s["shrink"])).plan(
        rollout_of(split_rows(ids, start), pad(step, (start, 0), value=-1)), plan_context(s["mask_id"])
    )
    for row, tokens in zip(everything.row.tolist(), everything.scored[:, start:], strict=True):
        # Published maps carry the last of the merged steps.
        merged[row, tokens] = step[row, tokens].max()
    case.close("out.step_map_shrunk", merged)


def trace_views(case: GoldenCase, rows: Rows, step: Tensor, layout: AttentionLayout | None = None) -> Views:
    """The product's views of a trace with steps [B,L1]."""
    s = case.settings
    estimator = Trajectory(TrajectorySection(merge_steps=s["shrink"], pad_targets=s["post_num"]))
    context = plan_context(s["mask_id"], layout=layout)
    context = replace(context, facts=replace(context.facts, pad_id=s["pad_id"]))
    return estimator.plan(rollout_of(rows, pad(step, (s["start_pos"], 0), value=-1)), context)


@golden("algos-grpo", "trajectory", "TraceRL for block-diffusion models")
def rows_of_a_block_trace(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    start, ids = s["start_pos"], t["in.ids"]
    column = torch.arange(ids.shape[1])
    # Prompts are padded on the left; a pad id inside the response is a token.
    real = (ids != s["pad_id"]).long().cumsum(dim=1) > 0
    rows = split_rows(ids, start, real | (column >= start))
    layout = AttentionLayout("block", s["block_size"], "prompt-end")
    views = trace_views(case, rows, t["in.step_map"], layout)
    case.close("out.extended_rows", torch.cat([views.targets, views.inputs[:, start:]], dim=1))
    case.close("out.target_rows", views.scored)
    case.close("out.row_owner", views.row)
    place = positions(views.valid)
    twice = torch.cat([place, place[:, start:]], dim=1)
    shown = torch.cat([views.valid, views.valid[:, start:]], dim=1)
    case.close("out.position_ids", twice, shown)
    blocks = block_index(rows.valid, rows.prompt_length, layout)
    noisy = torch.arange(twice.shape[1]) >= ids.shape[1]
    seen = torch.stack([two_copies_see(torch.cat([row, row[start:]]), noisy) for row in blocks])
    present = torch.cat([rows.valid, rows.valid[:, start:]], dim=1)
    case.close("out.visibility_padded", seen.long(), present[:, :, None] & present[:, None, :])
    unpadded = block_index(torch.ones_like(rows.valid[:1]), torch.tensor([start]), layout)[0]
    case.close("out.visibility", two_copies_see(torch.cat([unpadded, unpadded[start:]]), noisy).long())


def two_copies_see(block: Tensor, noisy: Tensor) -> Tensor:
    """[S,S] bool: what the two-copy attention plan lets each query see."""
    plan = segment_plan([len(block)], block.device, block=block, noisy=noisy)
    return plan.groups[0].mask[0, 0]


def trace_inputs(case: GoldenCase, live: Tensor, old: Tensor, scored: Tensor, layout: AttentionLayout) -> LossInputs:
    """One view per row; the response is everything after the prompt."""
    width = scored.shape[1]
    index = torch.arange(len(live))
    response = (torch.arange(width) >= width - case.settings["L1"]).expand(scored.shape)
    given = loss_inputs(
        live, old, advantages=case.tensors["in.advantages"], response=response, row=index, step=index * 0, mask=scored
    )
    return replace(given, views=replace(given.views, layout=layout))


@golden("algos-grpo", "loss", "TraceRL loss on fragment rows")
def tracerl_loss(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    full, block = AttentionLayout(), AttentionLayout("block", 1)
    for name, form, layout in (
        ("full", "k3", full),
        ("full", "k1", full),
        ("dream", "k3", full),
        ("block", "k3", block),
        ("block", "k1", block),
    ):
        logits = leaf(t["in.logits"])
        targets, scored, old = t["in.labels"].clamp(min=0), t["in.p_mask"], t["in.old_logps"]
        seen = logits
        if name == "dream":
            # The output at j - 1 scores token j; the first column is dropped.
            seen, targets, scored, old = logits[:, :-1], targets[:, 1:], scored[:, 1:], t["in.old_logps_dream"]
        made = trace_inputs(case, old, old, scored, layout)
        live = scores_from_logits(replace(made.views, targets=targets), seen).logp
        given = trace_inputs(case, live, torch.where(scored, old, 0.0), scored, layout)
        section = TraceRlSection(clip_range=s["eps"], kl_weight=s["beta"], kl_form=form)
        loss = TraceRl(section).loss(given).loss
        case.close(f"out.loss_{name}_{form}", loss.detach())
        case.close(f"out.grad_{name}_{form}", torch.autograd.grad(loss, logits)[0])
