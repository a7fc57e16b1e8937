"""Golden cases of supervised fine-tuning by other recipes: generic schedules, Dream, SDAR, LLaDA2."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dare_algos_elbo.estimators.bernoulli import Bernoulli
from dare_algos_elbo.estimators.config import BernoulliSection
from dare_algos_elbo.estimators.token_weights import neighbour_weights
from dare_algos_elbo.sft import sure_entropy
from dare_core.interfaces import PlanContext
from dare_core.testing.goldens import GoldenCase
from dare_core.types import Rows, Views
from tests.goldens.runner import golden
from tests.made_inputs import plan_context, rows_of, scores_from_logits
from tests.made_sft import given_views, sft_loss


def labelled_rows(case: GoldenCase) -> Rows:
    """Rows whose labelled tokens are the answer."""
    answer = case.tensors["in.labels"] != -100
    return rows_of(case.tensors["in.input_ids"], ~answer, answer)


def shifted(logits: Tensor) -> Tensor:
    """Logits that predict the next token, at the token they predict; the first position keeps its own."""
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1)


def drawn_views(case: GoldenCase, rows: Rows, context: PlanContext, **options: object) -> Views:
    """The estimator's plan for recorded uniform numbers."""
    time, token = (case.tensors[name].double() for name in ("in.u_t", "in.u_tok"))
    return Bernoulli(BernoulliSection(**options)).views(rows, context, time, token)


@golden("algos-elbo", "sft", "Generic MDLM SFT loss")
def generic(case: GoldenCase) -> None:
    rows, settings = labelled_rows(case), case.settings
    divisors = {"token": "supervised-tokens", "sequence": "sequence", "batch": "rows"}
    for schedule in ("linear", "cosine"):
        for form, weight in (("scheduler", "elbo"), ("uniform", "none")):
            options = {"schedule": schedule, "weight": weight, "time_low": settings["time_epsilon"]}
            views = drawn_views(case, rows, plan_context(settings["mask_id"]), **options)
            case.close(f"out.masked.{schedule}", views.scored)
            if weight == "elbo":
                case.close(f"out.weight.{schedule}", views.weight.amax(dim=1))
            for name, normalizer in divisors.items():
                loss = sft_loss(rows, views, case.tensors["in.logits"], normalizer)
                case.close(f"out.loss.{schedule}.{form}.{name}", loss)


@golden("algos-elbo", "sft", "Dream CART token weights")
def dream_cart(case: GoldenCase) -> None:
    rows, hidden = labelled_rows(case), case.tensors["in.masked"]
    for decay in case.settings["geo_p"]:
        weight = neighbour_weights(hidden, rows.valid, decay)
        case.close(f"out.weight.p{decay}", weight)
        views = given_views(rows, hidden, weight, 99)
        loss = sft_loss(rows, views, shifted(case.tensors["in.logits"]), "supervised-tokens")
        case.close(f"out.loss.p{decay}", loss)


@golden("algos-elbo", "sft", "DARE Dream SFT")
def dream_unclamped(case: GoldenCase) -> None:
    maskable = case.tensors["in.maskable"]
    rows = rows_of(case.tensors["in.input_ids"], ~maskable, maskable)
    context = plan_context(case.settings["mask_id"])
    context = replace(context, facts=replace(context.facts, eos_ids=(case.settings["eos_id"],)))
    for tied in (0, 1):
        # Published times start at 0, where the weight is infinite.
        views = drawn_views(case, rows, context, time_low=1e-12, end_run_as_one=bool(tied))
        case.close(f"out.masked.eos_as_one_{tied}", views.scored)
        case.close(f"out.noisy.eos_as_one_{tied}", views.inputs)
        loss = sft_loss(rows, views, shifted(case.tensors["in.logits"]), "noised-tokens")
        case.close(f"out.loss.eos_as_one_{tied}", loss)


@golden("algos-elbo", "sft", "SDAR block-diffusion SFT loss")
def sdar(case: GoldenCase) -> None:
    rows = labelled_rows(case)
    views = given_views(rows, case.tensors["in.masked"], 1 / case.tensors["in.p_mask"], 99)
    logits = case.tensors["in.logits"]
    case.close("out.loss", sft_loss(rows, views, logits, "supervised-tokens"))
    losses = -views.weight * scores_from_logits(views, logits).logp
    case.close("out.token_loss", losses[views.scored])


@golden("algos-elbo", "sft", "LLaDA2.x block-diffusion SFT")
def llada2(case: GoldenCase) -> None:
    ids, (low, high) = case.tensors["in.input_ids"], case.settings["noise_range"]
    prompt = torch.arange(ids.shape[1]) < case.tensors["in.prompt_lengths"][:, None]
    rows, logits = rows_of(ids, prompt, ~prompt), case.tensors["in.logits"]
    options = {"time_low": low, "time_high": high, "weight": "none"}
    views = drawn_views(case, rows, plan_context(case.settings["mask_id"]), **options)
    case.close("out.noisy", views.inputs)
    case.close("out.loss_same", sft_loss(rows, views, logits, "noised-tokens"))
    case.close("out.loss_shift", sft_loss(rows, views, shifted(logits), "noised-tokens"))
    logs = logits.log_softmax(dim=-1)
    scores = replace(
        scores_from_logits(views, logits),
        entropy=-(logs.exp() * logs).sum(dim=-1),
        correct=logs.argmax(dim=-1) == views.targets,
    )
    case.close("out.confidence", sure_entropy(views, scores))
