"""Golden cases of the ELBO family's corruptions, fed with recorded draws, and of exact expectations on toys."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dare_algos_elbo.estimators.bernoulli import Bernoulli
from dare_algos_elbo.estimators.block_stratified import BlockStratified
from dare_algos_elbo.estimators.config import (
    BernoulliSection,
    BlockStratifiedSection,
    CountStratifiedSection,
    EspoEstimatorSection,
    SpgEstimatorSection,
)
from dare_algos_elbo.estimators.count_stratified import CountStratified
from dare_algos_elbo.estimators.counts import CountEstimator
from dare_algos_elbo.estimators.draws import Lines
from dare_algos_elbo.estimators.espo import Espo
from dare_algos_elbo.estimators.spg import Spg
from dare_core.testing.enumeration import exact_elbo, log_mean_over_orders, order_logps, subset_table, token_elbo
from dare_core.testing.goldens import GoldenCase
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import AttentionLayout, Rows, Views
from tests.draw_enumeration import bernoulli_mean, context_of, count_outcomes, numbers_of, orders, value_of, values
from tests.goldens.runner import golden
from tests.made_inputs import plan_context, rows_of, split_rows


def sub_cases(case: GoldenCase) -> list[dict[str, Tensor]]:
    """Inputs of each sub-case c0, c1, ..., without its prefix."""
    names = sorted({name.split(".")[1] for name in case.names("input")})
    return [
        {name.split(".", 2)[2]: case.tensors[name] for name in case.names("input") if name.split(".")[1] == sub}
        for sub in names
    ]


def check_count_views(case: GoldenCase, sub: int, views: Views, *, masked: bool = True) -> None:
    """Noisy ids, hidden positions, and the probabilities behind the weights where something is hidden."""
    case.close(f"out.c{sub}.noisy", views.inputs)
    if masked:
        case.close(f"out.c{sub}.masked", views.scored)
    probability = torch.where(views.scored, 1 / views.weight.clamp(min=1e-9), 0.0)
    case.close(f"out.c{sub}.p_mask", probability, where=views.scored)


def count_views(
    estimator: CountEstimator, rows: Rows, case: GoldenCase, start: Tensor, order: Tensor, *, gathered: bool
) -> Views:
    """The estimator's plan for a recorded first count and recorded orders."""
    lines = Lines.of(rows, estimator.config.draws, "row")
    where = rows.response[lines.row]
    count = estimator.counts(lines, start.expand(len(lines.row)), where.sum(dim=1))
    context = plan_context(case.settings["mask_id"])
    return estimator.views(rows, context, count, numbers_of(order, where, gathered=gathered))


@golden("algos-elbo", "corruption", "LLaDA likelihood forward")
def discrete(case: GoldenCase) -> None:
    for sub, (given, settings) in enumerate(zip(sub_cases(case), case.settings["cases"], strict=True)):
        estimator = CountStratified(CountStratifiedSection(draws=settings["b"], rounding="published"))
        rows = split_rows(given["input_ids"][:1], settings["prompt"])
        views = count_views(estimator, rows, case, given["k"], given["perms"], gathered=True)
        check_count_views(case, sub, views, masked=False)


@golden("algos-elbo", "corruption", "DARE BGPO/VRPO forward")
def discrete_padded(case: GoldenCase) -> None:
    for sub, given in enumerate(sub_cases(case)):
        ids, valid = given["input_ids"], given["attention_mask"].bool()
        estimator = CountStratified(CountStratifiedSection(draws=len(ids), rounding="published"))
        rows = split_rows(ids[:1], case.settings["prompt_section"], valid[None])
        check_count_views(case, sub, count_views(estimator, rows, case, given["k"], given["perms"], gathered=False))


@golden("algos-elbo", "corruption", "ESPO forward")
def espo_forward(case: GoldenCase) -> None:
    for sub, given in enumerate(sub_cases(case)):
        shared = len(given["k"]) == 1
        options = EspoEstimatorSection(
            draws=1, coupled=False, rounding="published", systematic="rows" if shared else "none"
        )
        rows = split_rows(given["input_ids"], case.settings["prompt_section"], given["attention_mask"].bool())
        views = count_views(Espo(options), rows, case, given["k"], given["perms"], gathered=shared)
        check_count_views(case, sub, views)


@golden("algos-elbo", "corruption", "EBPO forward")
def block_forward(case: GoldenCase) -> None:
    for sub, (given, origin) in enumerate(zip(sub_cases(case), ("global", "response"), strict=True)):
        ids, valid = given["input_ids"], given["attention_mask"].bool()
        rows = split_rows(ids[:1], case.settings["prompt_section"], valid[None])
        draws = len(ids)
        estimator = BlockStratified(BlockStratifiedSection(draws=draws))
        layout = AttentionLayout("block", case.settings["block"], origin)
        context = plan_context(case.settings["mask_id"], layout=layout)
        numbers = torch.ones(ids.shape, dtype=torch.float64)
        for draw, blocks in enumerate(given["perms"]):
            start = int(rows.response[0].nonzero()[0])
            for order in blocks:
                order = order[order >= 0]
                numbers[draw, start : start + len(order)] = order.argsort().double() / 99
                start += len(order)
        check_count_views(case, sub, estimator.views(rows, context, given["u"].expand(draws), numbers))


@golden("algos-elbo", "corruption", "SDAR packed noising")
def packed_noising(case: GoldenCase) -> None:
    parts = {
        name: case.tensors[f"in.{name}"][0].split(case.settings["lengths"])
        for name in ("input_ids", "prompt_mask", "u_tok")
    }

    def padded(name: str, fill: Any) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(list(parts[name]), batch_first=True, padding_value=fill)

    prompt, valid = padded("prompt_mask", False), padded("input_ids", -1) >= 0
    rows = rows_of(padded("input_ids", 0), prompt, valid & ~prompt)
    estimator = Bernoulli(BernoulliSection(time_low=case.settings["eps"], redraws=10))
    context = plan_context(case.settings["mask_id"])
    views = estimator.views(rows, context, case.tensors["in.u_t"], padded("u_tok", 1.0))
    case.close("out.noisy", views.inputs[valid][None])
    case.close("out.masked", views.scored[valid][None])
    case.close("out.p_masked", 1 / views.weight[views.scored])


@golden("algos-elbo", "corruption", "SPG")
def spg_forward(case: GoldenCase) -> None:
    words = {"all": "all", "full": "random", "block-all": "block-all", "block-wise": "block-random"}
    masking = next(
        words[word] for word in (case.topic.split()[1], case.topic.split()[1].split("-")[0]) if word in words
    )
    settings, ids = case.settings, case.tensors["in.input_ids"]
    options = SpgEstimatorSection(
        draws=settings["num_t"],
        masking=masking,
        block_length=settings["block"],
        least=settings["min_t"],
        most=settings["max_t"],
        context_mask=settings["p_mask_prompt"],
    )
    estimator, rows = Spg(options), split_rows(ids, settings["prompt"])
    completion = torch.zeros_like(rows.response)
    completion[:, settings["prompt"] :] = case.tensors["in.completion_mask"].bool()
    rows = rows_of(ids, rows.prompt, rows.response, completion=completion)
    lines = len(ids) * settings["num_t"]
    block = torch.zeros(lines, dtype=torch.int64)
    if "in.block_perm" in case.tensors:
        block = estimator.reached(rows, case.tensors["in.block_perm"][:, : settings["num_t"]].flatten())
    count, numbers = block, torch.zeros((lines, ids.shape[1]), dtype=torch.float64)
    if "in.mask_num" in case.tensors:
        count = case.tensors["in.mask_num"].flatten()
        order = case.tensors["in.inner_perm" if "in.inner_perm" in case.tensors else "in.perms"].flatten(0, 1)
        where = completion.repeat_interleave(settings["num_t"], dim=0)
        if "in.inner_perm" in case.tensors:
            place = torch.arange(ids.shape[1]) - settings["prompt"]
            where = where & (place.div(settings["block"], rounding_mode="floor") == block[:, None])
        numbers = numbers_of(order, where, gathered=True)
    context = plan_context(settings["mask_id"])
    views = estimator.views(rows, context, block, count, numbers, case.tensors["in.u"].view(lines, -1))
    case.close("out.noisy", views.inputs.view(case.tensors["out.noisy"].shape))
    hidden = views.inputs == settings["mask_id"]
    assert torch.equal(views.scored, hidden & completion[views.row])
    # Whatever the case calls it: what lies up to the end of the chosen block. All that follows is hidden.
    end = settings["prompt"] + (block + 1) * settings["block"] if "in.block_perm" in case.tensors else ids.shape[1]
    before = torch.arange(ids.shape[1]) < torch.as_tensor(end).expand(lines)[:, None]
    case.close("out.block_mask", before.view(case.tensors["out.block_mask"].shape))
    assert hidden[~before].all()


def toy_row(case: GoldenCase, prompt: int) -> Rows:
    """The one row of an enumeration."""
    return split_rows(case.tensors["in.ids"][None], prompt)


@golden("algos-elbo", "enumeration", "Tiny bidirectional model")
def masked_enumeration(case: GoldenCase) -> None:
    toy, rows = ToyMasked.from_tables(case.tensors["in.bias"], case.tensors["in.table"]), toy_row(case, 1)
    table = subset_table(toy, rows)
    places = (case.tensors["in.subsets"].long() << torch.arange(case.settings["L"])).sum(dim=1) - 1
    case.close("out.token_logp_by_subset", table.logp[places].detach(), where=case.tensors["in.subsets"])
    case.close("out.elbo", exact_elbo(toy, rows).detach())
    case.close("out.elbo_per_token", token_elbo(toy, rows).detach()[rows.response[0]])
    case.close("out.elbo_from_permutations", torch.stack([logp for _, logp in order_logps(toy, rows)]).mean().detach())
    case.close("out.log_mixture_over_orders", log_mean_over_orders(toy, rows).detach())
    single = {
        "llada": values(CountStratified(CountStratifiedSection()), toy, rows),
        "espo": values(Espo(EspoEstimatorSection(draws=1, coupled=False)), toy, rows),
        "espo_coupled": values(Espo(EspoEstimatorSection(draws=1)), toy, rows),
    }
    case.close("out.elbo_bgpo_forward", single["llada"].mean())
    case.close("out.elbo_espo", single["espo"].mean())
    case.close("out.elbo_espo_coupled", single["espo_coupled"].mean())
    case.close("out.var_llada_single", single["llada"].var(correction=0))
    case.close("out.var_espo_single", single["espo"].var(correction=0))
    case.close("out.var_espo_coupled", single["espo_coupled"].var(correction=0))
    bernoulli = Bernoulli(BernoulliSection(time_low=case.settings["eps"]))
    case.close("out.elbo_bernoulli_eps", bernoulli_mean(toy, rows, bernoulli, 3).detach())
    for name in [name for name in case.names("expected") if name.startswith("out.eubo_per_token.b")]:
        power = float(name.rpartition(".b")[2])
        torch.testing.assert_close(exact_upper(toy, rows, power), case.tensors[name].mean(), rtol=1e-9, atol=1e-9)


def exact_upper(toy: ToyMasked, rows: Rows, power: float) -> Tensor:
    """The upper estimate over every count and order at once: the mean over tokens of its expectation's logarithm."""
    size = int(rows.response.sum())
    order = orders(size).repeat(size, 1)
    count = torch.arange(1, size + 1).repeat_interleave(math.factorial(size))
    options = SpgEstimatorSection(draws=len(count), masking="random", context_mask=0.0, power=power)
    estimator, nothing = Spg(options), torch.ones((len(count), rows.tokens.shape[1]), dtype=torch.float64)
    numbers = numbers_of(order, rows.response.expand(len(count), -1))
    views = estimator.views(rows, context_of(toy), torch.zeros_like(count), count, numbers, nothing)
    upper = estimator.reduce(views, toy.token_logp(views), rows).upper
    assert upper is not None
    return upper[0].detach()


@golden("algos-elbo", "enumeration", "Tiny block-causal model")
def block_enumeration(case: GoldenCase) -> None:
    settings = case.settings
    bias, table = case.tensors["in.bias"], case.tensors["in.table"]
    toy = ToyBlock.from_tables(bias, table, block_length=settings["block"])
    rows = toy_row(case, settings["prompt"])
    per_block = values(BlockStratified(BlockStratifiedSection(draws=1)), toy, rows)
    whole = values(CountStratified(CountStratifiedSection()), toy, rows)
    case.close("out.elbo_ebpo", per_block.mean())
    case.close("out.var_ebpo", per_block.var(correction=0))
    case.close("out.elbo_bgpo", whole.mean())
    case.close("out.var_bgpo", whole.var(correction=0))
    torch.testing.assert_close(exact_elbo(toy, rows).detach(), per_block.mean(), rtol=1e-12, atol=0)


@golden("algos-elbo", "enumeration", "Exact variances over all corruption randomness")
def variances(case: GoldenCase) -> None:
    rows, estimator = toy_row(case, case.settings["prompt"]), CountStratified(CountStratifiedSection())
    policies = {
        name: ToyMasked.from_tables(case.tensors[f"in.bias_{name}"], case.tensors[f"in.table_{name}"])
        for name in ("ref", "policy")
    }
    # One set of views for both policies, as everywhere.
    outcomes = list(count_outcomes(estimator, policies["ref"], rows))
    found = {
        name: torch.stack([value_of(estimator, toy, rows, views) for views in outcomes]).detach()
        for name, toy in policies.items()
    }
    for name, drawn in found.items():
        case.close(f"out.mean_{name}", drawn.mean())
        case.close(f"out.var_{name}", drawn.var(correction=0))
    case.close("out.var_diff_shared", (found["policy"] - found["ref"]).var(correction=0))
    case.close("out.var_diff_independent", sum(drawn.var(correction=0) for drawn in found.values()))
    by_count = found["policy"].view(case.settings["L"], -1)
    case.close("out.between_t", by_count.mean(dim=1).var(correction=0))
    case.close("out.within_t", by_count.var(dim=1, correction=0).mean())
