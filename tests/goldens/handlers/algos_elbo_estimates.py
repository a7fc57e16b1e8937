"""Golden cases of the ELBO family's estimates from given scores, and of SPG, whose loss is on two of them."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_elbo.bgpo import Bgpo
from dare_algos_elbo.config import BgpoSection, SpgSection
from dare_algos_elbo.estimators.block_stratified import BlockStratified
from dare_algos_elbo.estimators.config import (
    BlockStratifiedSection,
    CountStratifiedSection,
    EspoEstimatorSection,
    SpgEstimatorSection,
)
from dare_algos_elbo.estimators.count_stratified import CountStratified
from dare_algos_elbo.estimators.espo import Espo as EspoEstimator
from dare_algos_elbo.estimators.spg import Spg as SpgEstimator
from dare_algos_elbo.spg import Spg
from dare_core.testing.goldens import GoldenCase
from dare_core.types import Estimate, Rows, Scores
from tests.goldens.runner import golden
from tests.made_estimates import leaf, loss_of, recorded_views
from tests.made_inputs import rows_of, scores_from_logits, split_rows


@golden("algos-elbo", "estimator", "How per-token masked CE becomes")
def masked_aggregation(case: GoldenCase) -> None:
    t, settings = case.tensors, case.settings
    width, draws = settings["R"], settings["M"]
    rows = split_rows(t["in.input_ids"], settings["prompt_section"], t["in.attention_mask"].bool())
    views = recorded_views(rows, t["in.masked"], 1 / t["in.p_mask"], settings["mask_id"])
    scores = scores_from_logits(views, t["in.logits"].flatten(0, 1))

    def estimate(per: str) -> Tensor:
        estimator = CountStratified(CountStratifiedSection(draws=draws, per=per))
        return estimator.reduce(views, scores, rows).value

    case.close("out.bgpo.log_prob", estimate("row")[:, None].expand(-1, width))
    # Divided by the padded width, as published.
    by_view = estimate("view").view(-1, draws, 1).expand(-1, -1, width) / width
    case.close("out.bgpo.per_sample", by_view)
    case.close("out.vrpo.per_sample", by_view)
    case.close("out.vrpo.log_prob", estimate("row")[:, None].expand(-1, width) / width)


@golden("algos-elbo", "estimator", "Block-diffusion families")
def block_aggregation(case: GoldenCase) -> None:
    t, draws = case.tensors, case.settings["M"]
    response = t["in.response_mask"].bool()
    rows = rows_of(torch.zeros(response.shape, dtype=torch.int64), torch.zeros_like(response), response)
    contributions = -t["in.token_nll_over_p"]
    views = recorded_views(rows, response[:, None].expand_as(contributions), torch.ones_like(contributions), 9)
    scores = Scores(logp=contributions.flatten(0, 1))
    per_row = BlockStratified(BlockStratifiedSection(draws=draws)).reduce(views, scores, rows).value
    case.close("out.ebpo.log_prob", per_row[:, None].expand(response.shape))
    case.close("out.ebpo.token_elbo", (views.weight * scores.logp).view(contributions.shape))
    counts = CountStratified(CountStratifiedSection(draws=draws))
    case.close("out.bgpo.log_prob", counts.reduce(views, scores, rows).value[:, None].expand(response.shape))
    by_view = CountStratified(CountStratifiedSection(draws=draws, per="view")).reduce(views, scores, rows).value
    length = Bgpo(BgpoSection()).divisor(response.sum(dim=1))
    per_token = (by_view.view(-1, draws) / length[:, None])[:, :, None] * response[:, None]
    case.close("out.bgpo.per_sample", per_token)


@golden("algos-elbo", "estimator", "ESPO sequence ELBO from given logits")
def espo_elbo(case: GoldenCase) -> None:
    t, length = case.tensors, case.settings["L"]
    rows = split_rows(t["in.input_ids"], case.settings["prompt"])
    first = t["in.masked"]
    count = first.sum(dim=1)
    logits, coupled = leaf(t["in.logits"]), t["in.coupled_logits"]
    for reduce_var in (1, 0):
        estimator = EspoEstimator(EspoEstimatorSection(draws=1, coupled=bool(reduce_var)))
        weights = estimator.weights(torch.full_like(count, length), count)
        pair = [first, rows.response & ~first][: 1 + reduce_var]
        both = [weights, estimator.weights(torch.full_like(count, length), length - count)][: 1 + reduce_var]
        hidden = torch.stack(pair, dim=1)
        weight = torch.stack(both, dim=1)[:, :, None].expand(hidden.shape)
        views = recorded_views(rows, hidden, weight, 99)
        given = torch.stack([logits, coupled][: 1 + reduce_var], dim=1).flatten(0, 1)
        value = estimator.reduce(views, scores_from_logits(views, given), rows).value
        case.close(f"out.elbo.reduce_var_{reduce_var}", value.detach())
        case.close(f"out.elbo_dare.reduce_var_{reduce_var}", value.detach())
        if reduce_var:
            case.close("out.grad_logits", torch.autograd.grad(value.sum(), logits)[0])


_SPG_FORMS = {"elbo": "lower", "eubo": "upper", "mix": "mix", "zero": "zero"}


def spg_estimate(rows: Rows, hidden: Tensor, logits: Tensor, power: float) -> Estimate:
    """The estimate [B] for recorded hidden positions [B,D,L] under logits [B,D,L,V]."""
    scored = hidden & rows.completion[:, None]
    weight = 1 / scored.sum(dim=2, keepdim=True).to(torch.float64).expand(scored.shape)
    views = recorded_views(rows, scored, weight, 99, scored)
    estimator = SpgEstimator(SpgEstimatorSection(draws=hidden.shape[1], power=power))
    return estimator.reduce(views, scores_from_logits(views, logits.flatten(0, 1)), rows)


@golden("algos-elbo", "loss", "SPG sequence log-prob proxies")
def spg_loss(case: GoldenCase) -> None:
    t = case.tensors
    ids, completion = t["in.completion_ids"], t["in.completion_mask"].bool()
    full = torch.ones_like(completion)
    rows = rows_of(ids, ~full, full, completion=completion)
    for name in [name for name in case.names("expected") if name.startswith("out.loss.")]:
        form, _, power = name.removeprefix("out.loss.").partition(".b")
        logits = leaf(t["in.logits"])
        estimate = spg_estimate(rows, t["in.masked"].bool(), logits, float(power))
        algorithm = Spg(SpgSection(negative=_SPG_FORMS[form], mix_weight=case.settings["mix_weight"]))
        chosen = algorithm.chosen(estimate.value, estimate.upper, t["in.advantages"])
        case.close(f"out.seq_logp.{form}.b{power}", chosen.detach())
        loss = loss_of(algorithm, estimate.value, rows=rows, advantages=t["in.advantages"], upper=estimate.upper).loss
        case.close(name, loss.detach())
        if f"out.grad_logits.{form}.b{power}" in t:
            case.close(f"out.grad_logits.{form}.b{power}", torch.autograd.grad(loss, logits)[0])


@golden("algos-elbo", "estimator", "DARE SPG actor on given logits")
def spg_actor(case: GoldenCase) -> None:
    t, settings = case.tensors, case.settings
    rows = split_rows(t["in.input_ids"], settings["prompt_section"], t["in.attention_mask"].bool())
    estimate = spg_estimate(rows, t["in.masked"], t["in.logits"], settings["eubo_beta"])
    for form, negative in _SPG_FORMS.items():
        algorithm = Spg(SpgSection(negative=negative, mix_weight=settings["mix_weight"]))
        chosen = algorithm.chosen(estimate.value, estimate.upper, t["in.advantages"][:, 0])
        case.close(f"out.seq_logp.{form}", chosen)


@golden("algos-elbo", "loss", "DARE SPG policy loss")
def spg_policy_loss(case: GoldenCase) -> None:
    t = case.tensors
    completion = t["in.response_mask"].bool()
    rows = rows_of(completion.long(), torch.zeros_like(completion), completion)
    given = leaf(t["in.seq_logp"])
    loss = loss_of(Spg(SpgSection()), given[0], rows=rows, advantages=t["in.advantages"][:, 0], upper=given[0]).loss
    case.close("out.loss", loss.detach())
    case.close("out.grad", torch.autograd.grad(loss, given)[0])
