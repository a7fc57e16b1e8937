"""Golden cases of corruption, supervised fine-tuning and shared plumbing of the ELBO family."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_elbo.estimators.bernoulli import Bernoulli
from dare_algos_elbo.estimators.config import BernoulliSection
from dare_core.diffusion.corruption import bernoulli_mask, times
from dare_core.objectives import reductions
from dare_core.objectives.advantages import group_relative
from dare_core.testing.goldens import GoldenCase
from dare_core.types import Rows
from tests.goldens.runner import golden
from tests.made_inputs import plan_context, rows_of, split_rows
from tests.made_sft import given_views, sft_loss


@golden("algos-elbo", "corruption", "Bernoulli forward masking of LLaDA")
def bernoulli(case: GoldenCase) -> None:
    ids, eps = case.tensors["in.input_ids"], case.settings["eps"]
    rows = split_rows(ids, 0)
    estimator = Bernoulli(BernoulliSection(time_low=eps))
    views = estimator.views(
        rows, plan_context(case.settings["mask_id"]), case.tensors["in.u_t"], case.tensors["in.u_tok"]
    )
    case.close("out.noisy", views.inputs)
    case.close("out.masked", views.scored)
    probability = times(case.tensors["in.u_t"], eps)[:, None].expand(ids.shape)
    case.close("out.p_mask", probability)
    assert torch.equal(bernoulli_mask(case.tensors["in.u_tok"], probability, rows.response), views.scored)
    torch.testing.assert_close(views.weight[views.scored], 1 / probability[views.scored])


@golden("algos-elbo", "advantage", "Outcome advantages: grpo")
def outcome_advantages(case: GoldenCase) -> None:
    scores = case.tensors["in.scores"]
    group = torch.arange(len(scores)) // case.settings["group"]
    width = case.tensors["out.grpo"].shape[1]
    options = {"grpo": {"scale": "std", "eps": 1e-6}, "grpo_nostd": {}, "rloo": {"baseline": "leave-one-out"}}
    for name, chosen in options.items():
        case.close(f"out.{name}", group_relative(scores, group, single="raw", **chosen)[:, None].expand(-1, width))


@golden("algos-elbo", "reduction", "Four loss aggregations")
def aggregation(case: GoldenCase) -> None:
    values, mask = case.tensors["in.mat"], case.tensors["in.mask"].bool()
    case.close("out.token-mean", reductions.token_mean(values, mask))
    case.close("out.seq-mean-token-sum", reductions.sequence_mean_token_sum(values, mask))
    case.close("out.seq-mean-token-mean", reductions.sequence_mean_token_mean(values, mask))
    case.close("out.seq-mean-token-sum-norm", reductions.fixed_length(values, mask, values.shape[1]))


def answer_rows(case: GoldenCase) -> Rows:
    """Rows of prompts of unequal length; everything behind the prompt is the answer, its end tokens included."""
    ids = case.tensors["in.input_ids"]
    prompt = torch.arange(ids.shape[1]) < case.tensors["in.prompt_lengths"][:, None]
    return rows_of(ids, prompt, ~prompt)


def check_gradient(case: GoldenCase, loss: Tensor, logits: Tensor) -> None:
    """Value and gradient."""
    case.close("out.loss", loss.detach())
    case.close("out.grad_logits", torch.autograd.grad(loss, logits)[0])


@golden("algos-elbo", "sft", "LLaDA pre-training NELBO")
def pretraining(case: GoldenCase) -> None:
    logits = case.tensors["in.logits"].clone().requires_grad_()
    rows = split_rows(case.tensors["in.input_ids"], 0)
    views = given_views(rows, case.tensors["in.masked"], 1 / case.tensors["in.p_mask"], case.settings["mask_id"])
    check_gradient(case, sft_loss(rows, views, logits), logits)


@golden("algos-elbo", "sft", "LLaDA SFT loss")
def llada_sft(case: GoldenCase) -> None:
    logits = case.tensors["in.logits"].clone().requires_grad_()
    rows = answer_rows(case)
    estimator = Bernoulli(BernoulliSection(time_low=case.settings["eps"]))
    views = estimator.views(
        rows, plan_context(case.settings["mask_id"]), case.tensors["in.u_t"], case.tensors["in.u_tok"]
    )
    case.close("out.noisy", views.inputs)
    case.close("out.masked", views.scored)
    check_gradient(case, sft_loss(rows, views, logits), logits)


@golden("algos-elbo", "sft", "DARE LLaDA SFT variant")
def unified_sft(case: GoldenCase) -> None:
    logits = case.tensors["in.logits"].clone().requires_grad_()
    rows = answer_rows(case)
    views = given_views(rows, case.tensors["in.masked"], 1 / case.tensors["in.t"][:, None], case.settings["mask_id"])
    check_gradient(case, sft_loss(rows, views, logits, "noised-tokens"), logits)
    case.close("out.loss_llada", sft_loss(rows, views, logits).detach())
