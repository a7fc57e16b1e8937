"""Golden cases of d-TreeRPO: values of trees, the loss of segments."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_algos_grpo.config import DTreeRpoSection, SnapshotsSection
from dare_algos_grpo.dtreerpo import Distillation, DTreeRpo
from dare_algos_grpo.estimators.snapshots import StepGuesses
from dare_core.objectives.advantages import group_relative
from dare_core.objectives.trees import node_values, sibling_groups
from dare_core.testing.goldens import GoldenCase
from dare_core.types import Advantages, Estimate, LossInputs, Progress, Rollout, Snapshots, TreeShape
from tests.goldens.handlers.algos_grpo import leaf
from tests.goldens.runner import golden
from tests.made_inputs import plan_context, rollout_of, scores_from_logits, split_rows


@golden("algos-grpo", "advantage", "d-TreeRPO: leaf rewards are averaged upwards")
def tree_values(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    parent, rewards = t["in.node_parent"], t["in.leaf_rewards"]
    shape = TreeShape(s["children_of_root"], s["children_of_inner_node"], s["contraction_factor"])
    case.close("out.branch_points", torch.tensor(shape.branch_points(s["diffusion_steps"])))
    assert shape.leaves == len(rewards)
    is_leaf = torch.ones_like(parent, dtype=torch.bool).index_fill(0, parent[1:], False)
    advantages, groups, roots = [], [], []
    count = rewards.shape[1]
    for prompt in range(count):
        values = node_values(torch.zeros(len(parent)).masked_scatter(is_leaf, rewards[:, prompt]), parent)
        roots.append(values[0])
        # Segments are the nodes but the root.
        siblings = sibling_groups(parent - 1, torch.full_like(parent, prompt))[1:]
        judged = torch.isfinite(values[1:])
        advantages.append(group_relative(values[1:], siblings, judged, baseline="leave-one-out", single="raw"))
        groups.append(parent[1:] * count + prompt)
        assert torch.equal(siblings[:, None] == siblings, groups[-1][:, None] == groups[-1])
    case.close("out.local_advantages", torch.stack(advantages, dim=1))
    case.close("out.group_ids", torch.stack(groups, dim=1))
    case.close("out.root_value_mean", torch.stack(roots).mean())
    star = torch.tensor([-1, 0, 0, 0])
    some = [torch.tensor([0.0, first, torch.nan, second]) for first, second in zip(rewards[0], rewards[1], strict=True)]
    case.close("out.aggregate_with_nan_child", torch.stack([node_values(values, star)[0] for values in some]))


def segments(case: GoldenCase) -> Rollout:
    """The stored segments as the snapshots of a rollout, each with a response of its own."""
    t, s = case.tensors, case.settings
    count = len(t["in.child_ids"])
    rows = split_rows(t["in.child_ids"], s["prompt_length"])
    # Segments of one parent are siblings; parents are roots of prompts of their own.
    rollout = rollout_of(replace(rows, group=t["in.group_ids"]), torch.zeros_like(rows.tokens))
    snapshots = Snapshots(
        inputs=t["in.parent_ids"],
        predicted=t["in.child_ids"],
        confidence=torch.ones(rows.tokens.shape),
        row=torch.arange(count),
        step=torch.zeros(count, dtype=torch.int64),
        parent=torch.full((count,), -1),
    )
    return replace(rollout, trace=replace(rollout.trace, snapshots=snapshots))


def segment_inputs(case: GoldenCase, logits: Tensor) -> LossInputs:
    """Loss inputs of all segments under the parents' logits [groups,L,V]."""
    t, s = case.tensors, case.settings
    rollout, estimator = segments(case), StepGuesses(SnapshotsSection(scored_tokens="completion"))
    context = plan_context(s["mask_id"])
    context = replace(context, facts=replace(context.facts, eos_ids=(s["eos_token_id"],)))
    views = estimator.plan(rollout, context)
    scores = scores_from_logits(views, logits[t["in.group_ids"]])
    live = estimator.reduce(views, scores, rollout)

    def stored(name: str) -> Estimate:
        return replace(live, value=pad(t[name], (s["prompt_length"], 0)))

    advantage = t["in.local_advantages"]
    return LossInputs(
        rows=rollout,
        views=views,
        scores=scores,
        live=live,
        old=stored("in.old_local_logps"),
        reference=stored("in.ref_local_logps"),
        advantages=Advantages(value=advantage, usable=torch.ones_like(advantage, dtype=torch.bool)),
        progress=Progress(step=s["global_step"], total=s["max_steps"]),
    )


@golden("algos-grpo", "loss", "d-TreeRPO segment loss")
def dtree_loss(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    section = DTreeRpoSection(
        clip_range=s["epsilon"],
        kl_weight=s["beta"],
        distill_weight=s["lambda_max"],
        distill_growth=s["gamma"],
        distill_temperature=s["tau_max"],
        distill_cooling=s["beta_tau"],
        distill_steps=s["max_steps"],
    )
    logits = leaf(t["in.logits"])
    inputs = segment_inputs(case, logits)
    start = s["prompt_length"]
    case.close("out.new_local_logps", inputs.live.value[:, start:].detach())
    case.close("out.active_mask", inputs.live.mask[:, start:].float())
    schedule = Distillation.at(section, inputs.progress)
    case.close("out.lambda_t", torch.tensor(schedule.weight))
    case.close("out.tau_t", torch.tensor(schedule.temperature))
    algorithm = DTreeRpo(section)
    case.close("out.self_distillation", algorithm.self_distillation(inputs, schedule.temperature)[0].detach())

    def loss(**options: float) -> Tensor:
        return DTreeRpo(section.model_copy(update=options)).loss(inputs).loss

    policy = loss(kl_weight=0.0, distill_weight=0.0)
    case.close("out.policy_loss", policy.detach())
    case.close("out.kl_term", (loss(distill_weight=0.0) - policy).detach())
    whole = loss()
    case.close("out.loss", whole.detach())
    case.close("out.grad_logits", torch.autograd.grad(whole, logits)[0])
