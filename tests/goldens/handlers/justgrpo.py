"""Golden cases of JustGRPO: advantages, left-to-right states, losses."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_grpo.config import JustGrpoSection, LeftToRightSection
from dare_algos_grpo.estimators.left_to_right import LeftToRight
from dare_algos_grpo.just_grpo import JustGrpo
from dare_core.diffusion.layouts import positions
from dare_core.objectives.advantages import group_relative
from dare_core.objectives.clips import clipped_surrogate
from dare_core.objectives.ratios import token_ratio
from dare_core.testing.goldens import GoldenCase
from dare_core.types import LossInputs
from tests.goldens.handlers.algos_grpo import leaf
from tests.goldens.runner import golden
from tests.made_inputs import loss_inputs, plan_context, scores_from_logits, split_rows


@golden("algos-grpo", "advantage", "Std-normalised advantage of JustGRPO")
def justgrpo_advantages(case: GoldenCase) -> None:
    rewards = case.tensors["in.rewards"]
    group = torch.arange(len(rewards)) % case.settings["num_prompts"]
    found = group_relative(rewards, group, scale="std", eps=case.settings["std_eps"])
    case.close("out.advantages", found)
    case.close("out.num_nonzero", (found != 0).sum())


@golden("algos-grpo", "loss", "JustGRPO: response token t is scored")
def justgrpo_loss(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    length, count, vocab = t["in.logits_at_target"].shape
    width = t["in.generated_ids"].shape[1]
    rows = split_rows(t["in.generated_ids"], width - length)
    estimator = LeftToRight(LeftToRightSection(temperature=s["temperature"]))
    views = estimator.plan(rows, plan_context(s["mask_id"]))
    case.close("out.states", views.inputs.view(count, length, width).transpose(0, 1))
    logits = leaf(t["in.logits_at_target"])
    spread = (logits / s["temperature"]).transpose(0, 1).reshape(-1, 1, vocab).expand(-1, width, -1)
    live = estimator.reduce(views, scores_from_logits(views, spread), rows).value
    given = loss_inputs(live, advantages=t["in.advantages"], response=rows.response)
    algorithm = JustGrpo(JustGrpoSection(clip_range=s["eps"]))
    total = s["gain"] * algorithm.loss(given).loss
    case.close("out.total_loss", total.detach())
    case.close("out.grad_logits", torch.autograd.grad(total, logits)[0])


@golden("algos-grpo", "loss", "DARE's JustGRPO actor")
def justgrpo_packed_states(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    valid, width = t["in.attention_mask"].bool(), t["in.new_logps"].shape[1]
    prompt_width = valid.shape[1] - width
    rows = split_rows(t["in.input_ids"], prompt_width, valid)
    views = LeftToRight(LeftToRightSection()).plan(rows, plan_context(s["mask_token_id"]))
    _, column = views.scored.nonzero(as_tuple=True)
    place = column - prompt_width
    # The published pack holds positions of one range, position by position; a position without a target is left out.
    low, high = s["range"]
    order = (place * len(rows) + views.row).argsort()
    order = order[(place[order] >= low) & (place[order] < high)]
    views, place = views.take(order), place[order]
    lengths = views.valid.sum(dim=1)
    case.close("out.packed_input", views.inputs[views.valid][None])
    case.close("out.cu_seqlens", torch.nn.functional.pad(lengths.cumsum(0), (1, 0)))
    target = positions(views.valid).gather(1, column[order][:, None])[:, 0]
    case.close("out.target_offsets", lengths.cumsum(0) - lengths + target)
    case.close("out.target_ids", views.targets[views.scored])
    case.close("out.batch_indices", views.row)
    case.close("out.relative_positions", place - low)
    case.close("out.prompt_lengths", views.prompt_length)
    check_chunked_losses(case, rows.response[:, prompt_width:])


def check_chunked_losses(case: GoldenCase, response: Tensor) -> None:
    """Losses over all positions at once equal the published sums over chunks."""
    t, s = case.tensors, case.settings

    def inputs() -> LossInputs:
        return loss_inputs(t["in.new_logps"], t["in.old_logps"], advantages=t["in.advantages"][:, 0], response=response)

    def loss(**options: object) -> Tensor:
        return (
            JustGrpo(JustGrpoSection(clip_range=s["clip"], dual_clip=s["clip_ratio_c"], **options)).loss(inputs()).loss
        )

    ratio = token_ratio(t["in.new_logps"], t["in.old_logps"])
    surrogate = clipped_surrogate(ratio, t["in.advantages"], s["clip"], s["clip"], s["clip_ratio_c"])
    case.close("out.token_loss", surrogate.loss)
    case.close("out.loss_token_mean", loss(reduction="token-mean"))
    case.close("out.loss_seq_mean_token_sum", loss(reduction="sequence-mean-token-sum"))
    case.close("out.loss_seq_mean_token_mean", loss(reduction="sequence-mean-token-mean"))
    # The published form divides by the length only, not by the number of sequences.
    length = response.shape[1] / len(response)
    case.close("out.loss_seq_mean_token_sum_norm", loss(reduction="fixed-length", length_divisor=length))
