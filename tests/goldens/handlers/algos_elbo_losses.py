"""Golden cases of the ELBO family's preference and RL losses."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_elbo.bgpo import Bgpo
from dare_algos_elbo.config import BgpoSection, EbpoSection, EspoSection, VrpoSection
from dare_algos_elbo.dpo import Dpo
from dare_algos_elbo.ebpo import Ebpo
from dare_algos_elbo.espo import Espo
from dare_algos_elbo.estimators.block_stratified import BlockStratified
from dare_algos_elbo.estimators.config import BlockStratifiedSection
from dare_core.objectives import reductions
from dare_core.objectives.clips import clipped_surrogate
from dare_core.objectives.kl import KL_FORMS
from dare_core.objectives.ratios import linear_ratio
from dare_core.testing.goldens import GoldenCase
from dare_core.types import PairRows, Scores
from tests.goldens.linearised_kl import linearised_difference
from tests.goldens.runner import golden
from tests.made_estimates import leaf, loss_of, recorded_views
from tests.made_inputs import rows_of


def check(case: GoldenCase, name: str, loss: Tensor, inputs: Tensor, grad: str) -> None:
    """Value and gradient."""
    case.close(name, loss.detach())
    case.close(grad, torch.autograd.grad(loss, inputs, retain_graph=True)[0])


@golden("algos-elbo", "preference", "DPO loss on MC-averaged ELBOs")
def preference(case: GoldenCase) -> None:
    t, settings = case.tensors, case.settings
    pairs = len(t["in.policy_chosen"])
    names = {"chosen": 0, "rejected": 1}
    full = torch.ones(2 * pairs, settings["R"], dtype=torch.bool)
    rows = PairRows(
        tokens=full.long(),
        prompt=~full,
        response=full,
        completion=full,
        sample_id=torch.arange(2 * pairs),
        group=torch.arange(pairs).repeat_interleave(2),
        example_id=("",) * (2 * pairs),
        preferred=torch.tensor([True, False] * pairs),
    )
    for variant, divisor in (("paper_sum", None), ("dare_normalised", float(settings["R"]))):
        draws = torch.stack([t[f"in.policy_{name}"] for name in names], dim=1).flatten(0, 1).requires_grad_()
        reference = torch.stack([t[f"in.ref_{name}"] for name in names], dim=1).flatten(0, 1)
        algorithm = Dpo(VrpoSection(beta=settings["beta"], score_divisor=divisor))
        loss = loss_of(algorithm, draws.mean(dim=1), rows=rows, reference=reference.mean(dim=1)).loss
        case.close(f"out.loss.{variant}", loss.detach())
        grad = torch.autograd.grad(loss, draws)[0].view(pairs, 2, -1)
        for name, side in names.items():
            case.close(f"out.grad_{name}.{variant}", grad[:, side])


@golden("algos-elbo", "loss", "BGPO clipped surrogate for one MC sample")
def bgpo_surrogate(case: GoldenCase) -> None:
    t, settings = case.tensors, case.settings
    mask, advantages = t["in.response_mask"].bool(), t["in.advantages"]
    algorithm = Bgpo(
        BgpoSection(
            clip_range=settings["clip_low"], clip_range_high=settings["clip_high"], dual_clip=settings["clip_c"]
        )
    )
    live = leaf(t["in.new"])
    difference = live - t["in.old"]
    surrogate, ratio = algorithm.surrogate(difference, advantages), linear_ratio(difference, advantages)
    names = {
        "token-mean": reductions.token_mean(surrogate.loss, mask),
        "seq-mean-token-sum": reductions.sequence_mean_token_sum(surrogate.loss, mask),
        "seq-mean-token-mean": reductions.sequence_mean_token_mean(surrogate.loss, mask),
        "seq-mean-token-sum-norm": reductions.fixed_length(surrogate.loss, mask, mask.shape[1]),
    }
    for name, loss in names.items():
        check(case, f"out.loss.{name}", loss, live, f"out.grad.{name}")
    shown = {"clipfrac": surrogate.clipped, "clipfrac_lower": surrogate.capped, "ppo_kl": -ratio.log()}
    for name, entries in shown.items():
        total, weight = reductions.masked_mean(entries.to(torch.float64), mask)
        case.close(f"out.{name}", torch.tensor(total / weight, dtype=torch.float64))


def bgpo_on_draws(live: Tensor, old: Tensor | None, advantages: Tensor, clip: float) -> Tensor:
    """The loss on estimates [B,M] that are already per token."""
    count, draws = live.shape
    algorithm = Bgpo(BgpoSection(clip_range=clip, length_divisor=1.0, dual_clip=None))
    row = torch.arange(count).repeat_interleave(draws)
    return loss_of(
        algorithm,
        live.flatten(),
        row=row,
        draws=draws,
        old=None if old is None else old.flatten(),
        advantages=advantages,
    ).loss


@golden("algos-elbo", "loss", "BGPO memory-constant accumulation")
def bgpo_on_policy(case: GoldenCase) -> None:
    live = leaf(case.tensors["in.elbo"])
    loss = bgpo_on_draws(live, None, case.tensors["in.advantages"], case.settings["clip"])
    check(case, "out.loss", loss, live, "out.grad")


@golden("algos-elbo", "loss", "Off policy (no clip active)")
def bgpo_bound(case: GoldenCase) -> None:
    t = case.tensors
    loss = bgpo_on_draws(t["in.elbo_new"], t["in.elbo_old"], t["in.advantages"], case.settings["clip"])
    case.close("out.surrogate", loss)
    ratio = (t["in.elbo_new"] - t["in.elbo_old"]).mean(dim=1).exp()
    exact = clipped_surrogate(ratio, t["in.advantages"], case.settings["clip"], case.settings["clip"]).loss.mean()
    case.close("out.exact_objective_loss", exact)
    assert loss >= exact


@golden("algos-elbo", "kl", "BGPO KL penalty variants")
def bgpo_kl(case: GoldenCase) -> None:
    live, advantages = leaf(case.tensors["in.new"]), case.tensors["in.advantages"]
    difference = linearised_difference(live - case.tensors["in.ref"], advantages)
    torch.testing.assert_close(difference.exp(), linear_ratio(live - case.tensors["in.ref"], advantages))
    for name, form in (("k1", "k1"), ("abs", "abs"), ("k2", "k2"), ("k3", "k3-clamped")):
        value = KL_FORMS[form](difference)
        case.close(f"out.kl.{name}", value.detach())
        case.close(f"out.grad.{name}", torch.autograd.grad(value.sum(), live, retain_graph=True)[0])


@golden("algos-elbo", "loss", "EBPO: composite ELBO")
def ebpo_loss(case: GoldenCase) -> None:
    t, settings = case.tensors, case.settings
    response = t["in.response_mask"].bool()
    rows = rows_of(torch.zeros(response.shape, dtype=torch.int64), torch.zeros_like(response), response)
    tokens = t["in.token_elbo"]
    draws = tokens.shape[1]
    views = recorded_views(rows, response[:, None].expand_as(tokens), torch.ones_like(tokens), 9)
    for name, weights in (("uniform", None), ("weighted", tuple(t["in.weights"].tolist()))):
        estimator = BlockStratified(BlockStratifiedSection(draws=draws, draw_weights=weights))
        estimate = estimator.reduce(views, Scores(logp=tokens.flatten(0, 1)), rows)
        case.close(f"out.composite_{name}", estimate.value)
    live = leaf(t["in.new"])
    algorithm = Ebpo(EbpoSection(clip_range=settings["clip_low"], clip_range_high=settings["clip_high"]))
    usable = t["in.valid"].bool()
    output = loss_of(algorithm, live, rows=rows, old=t["in.old"], advantages=t["in.advantages"], usable=usable)
    check(case, "out.loss", output.loss, live, "out.grad")
    metrics = output.metrics
    for name, value in {
        "clipfrac": metrics["clip_fraction"].value,
        "clipfrac_lower": metrics["clip_fraction_low"].value,
        "ppo_kl": -metrics["log_ratio"].value,
    }.items():
        case.close(f"out.{name}", torch.tensor(value, dtype=torch.float64))
    # The KL surrogates are of the values recorded as old.
    live = leaf(t["in.old"])
    for form in ("k1", "abs", "k2", "k3"):
        chosen = Ebpo(EbpoSection(kl_form=form))
        value = chosen.divergence(live - t["in.ref"], chosen.divisor(response.sum(dim=1)))
        case.close(f"out.kl.{form}", value.detach())
        case.close(f"out.kl_grad.{form}", torch.autograd.grad(value.sum(), live, retain_graph=True)[0])


@golden("algos-elbo", "loss", "ESPO: ratio exp")
def espo_loss(case: GoldenCase) -> None:
    t, settings = case.tensors, case.settings
    for name, weight in (("beta0", 0.0), ("beta1", settings["beta"])):
        live = leaf(t["in.elbo"])
        options = EspoSection(
            clip_range=settings["eps_low"],
            clip_range_high=settings["eps_high"],
            kl_weight=weight,
            length_divisor=settings["L_fixed"],
        )
        output = loss_of(
            Espo(options), live, old=t["in.old_elbo"], reference=t["in.ref_elbo"], advantages=t["in.advantages"]
        )
        check(case, f"out.loss.{name}", output.loss, live, f"out.grad.{name}")
        if not weight:
            case.close("out.loss_dare", output.loss.detach())


@golden("algos-elbo", "kl", "ESPO KL estimators")
def espo_kl(case: GoldenCase) -> None:
    live, fixed = leaf(case.tensors["in.elbo"]), case.settings["L_fixed"]
    for name, form in (("k1", "k1-score"), ("k2", "k2"), ("k3", "k3")):
        algorithm = Espo(EspoSection(kl_form=form, length_divisor=fixed))
        difference = live - case.tensors["in.ref_elbo"]
        divided = algorithm.divergence(difference, algorithm.divisor(torch.ones(len(live))))
        for prefix, value in (("", divided * fixed), ("dare.", divided)):
            case.close(f"out.{prefix}kl.{name}", value.detach())
            case.close(f"out.{prefix}grad.{name}", torch.autograd.grad(value.sum(), live, retain_graph=True)[0])
