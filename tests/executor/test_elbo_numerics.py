"""Every estimator and loss of the ELBO family, on any valid input: finite, and blind to what does not count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.draw_enumeration import context_of
from tests.executor.elbo_estimators import bernoulli
from tests.executor.families import FAMILIES
from tests.executor.test_estimators_elbo import PLANS
from tests.executor.toy_training import toy_rows
from tests.made_inputs import rows_of
from torch import Tensor

from dare_algos_elbo import config
from dare_algos_elbo.bgpo import Bgpo
from dare_algos_elbo.dpo import Dpo
from dare_algos_elbo.ebpo import Ebpo
from dare_algos_elbo.espo import Espo
from dare_algos_elbo.sft import Sft
from dare_algos_elbo.spg import Spg
from dare_core.interfaces import Algorithm
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import Advantages, LossInputs, PairRows, Progress, Rows, Scores, Views

VOCABULARY, WIDTH = 8, 7
ESTIMATORS = PLANS | {"bernoulli-focal": bernoulli(focal_power=2.0), "bernoulli-length": bernoulli(crop="length")}
#: every loss, with the estimators whose estimate it takes, and options far from the defaults
LOSSES: dict[str, tuple[Callable[[], Algorithm], str]] = {
    "sft": (lambda: Sft(config.SftSection()), "row"),
    "sft-noised": (lambda: Sft(config.SftSection(loss_normalizer="noised-tokens", confidence_weight=0.5)), "row"),
    "dpo": (lambda: Dpo(config.DpoSection(label_smoothing=0.1, sft_weight=0.5)), "row"),
    "bgpo": (lambda: Bgpo(config.BgpoSection(kl_weight=0.1)), "view"),
    "espo": (lambda: Espo(config.EspoSection(kl_form="k3")), "row"),
    "ebpo": (lambda: Ebpo(config.EbpoSection(kl_weight=0.1)), "row"),
    "spg": (lambda: Spg(config.SpgSection(negative="mix")), "upper"),
    "spg-upper": (lambda: Spg(config.SpgSection(negative="upper")), "upper"),
}
CALM = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def valid_rows(draw: st.DrawFn) -> Rows:
    """2 or 4 rows with any prompt and response lengths; responses may be empty, have an end-token tail, or gaps."""
    count = draw(st.sampled_from([2, 4]))
    tokens = torch.tensor(
        draw(st.lists(st.integers(0, VOCABULARY - 2), min_size=count * WIDTH, max_size=count * WIDTH))
    )
    tokens = tokens.view(count, WIDTH)
    prompt, response = torch.zeros(count, WIDTH).bool(), torch.zeros(count, WIDTH).bool()
    for row in range(count):
        start, end = sorted(draw(st.lists(st.integers(0, WIDTH), min_size=2, max_size=2)))
        prompt[row, :start], response[row, start:end] = True, True
        gap = draw(st.integers(0, WIDTH - 1))
        if start < gap < end - 1:
            prompt[row, gap], response[row, gap] = True, False
    return rows_of(tokens, prompt, response, group=torch.arange(count) // 2)


def scores_of(draw_numbers: list[float], views: Views) -> Scores:
    """Log-probabilities from almost 0 to far below, entropies, and which targets are right."""
    numbers = torch.tensor(draw_numbers, dtype=torch.float64)
    index = torch.arange(views.inputs.numel()).view(views.inputs.shape) % len(numbers)
    logp = torch.where(views.scored, numbers[index], 0.0)
    return Scores(logp=logp, entropy=-logp / 9, correct=views.scored & (logp > -1))


LOGPS = st.lists(st.sampled_from([0.0, -1e-9, -0.3, -2.0, -40.0, -700.0]) | st.floats(-60, 0), min_size=3, max_size=9)
ADVANTAGES = st.lists(st.sampled_from([0.0, 1.0, -1.0, 1e-6, 30.0]), min_size=4, max_size=4)


def fits(name: str, per: str) -> bool:
    return name.startswith("spg") == (per == "upper")


def loss_of(
    algorithm: Algorithm, estimator: Any, rows: Rows, views: Views, scores: Scores, advantages: Tensor
) -> Tensor:
    """The loss, off policy: the old policy and the reference think a little worse of everything."""
    live = estimator.reduce(views, scores, rows)
    shifted = replace(scores, logp=torch.where(views.scored, scores.logp.detach() - 0.01, 0.0))
    other = estimator.reduce(views, shifted, rows).detached()
    value = advantages[: len(rows)].double()
    if isinstance(algorithm, Dpo):
        fields = {name: getattr(rows, name) for name in Rows.__dataclass_fields__}
        rows = PairRows(**fields, preferred=torch.arange(len(rows)) % 2 == 0)
    return algorithm.loss(
        LossInputs(
            rows=rows,
            views=views,
            scores=scores,
            live=live,
            old=other,
            reference=other,
            advantages=Advantages(value=value, usable=torch.ones_like(value, dtype=torch.bool)),
            progress=Progress(step=0, total=1),
        )
    ).loss


def pairings() -> list[tuple[str, str]]:
    """SFT on every estimator, other losses on one or two."""
    some = ("bernoulli", "espo", "spg", "spg-random")
    return [
        (loss, name)
        for loss, (_, per) in LOSSES.items()
        for name in ESTIMATORS
        if fits(name, per) and (loss == "sft" or name in some)
    ]


def estimator_for(name: str, per: str) -> Any:
    estimator = ESTIMATORS[name]
    if per != "view":
        return estimator
    return type(estimator)(estimator.config.model_copy(update={"per": "view"}))


@pytest.mark.parametrize(("loss", "name"), pairings())
@CALM
@given(rows=valid_rows(), numbers=LOGPS, advantages=ADVANTAGES)
def test_loss_and_gradient_are_finite_for_any_valid_input(loss, name, rows, numbers, advantages):
    make, per = LOSSES[loss]
    estimator = estimator_for(name, per)
    views = estimator.plan(rows, context_of(ToyMasked(VOCABULARY, 16)))
    leaves = scores_of(numbers, views).leaves()
    total = loss_of(make(), estimator, rows, views, leaves, torch.tensor(advantages))
    assert bool(total.isfinite())
    assert total.requires_grad
    total.backward()
    assert leaves.logp.grad is not None
    assert bool(leaves.logp.grad.isfinite().all())
    # What is not scored or weighs nothing gets no gradient.
    assert not bool(leaves.logp.grad[~views.scored].any())


@pytest.mark.parametrize(("loss", "name"), pairings())
@CALM
@given(rows=valid_rows(), numbers=LOGPS, advantages=ADVANTAGES, spoiler=st.sampled_from([torch.nan, torch.inf, 5.0]))
def test_what_is_not_scored_changes_neither_loss_nor_gradient(loss, name, rows, numbers, advantages, spoiler):
    make, per = LOSSES[loss]
    estimator = estimator_for(name, per)
    views = estimator.plan(rows, context_of(ToyMasked(VOCABULARY, 16)))
    found = []
    for filler, label in ((0.0, None), (spoiler, VOCABULARY + 90)):
        scores = scores_of(numbers, views)
        logp = torch.where(views.scored, scores.logp, filler).requires_grad_()
        seen = views if label is None else replace(views, targets=torch.where(views.scored, views.targets, label))
        total = loss_of(make(), estimator, rows, seen, replace(scores, logp=logp), torch.tensor(advantages))
        total.backward()
        assert logp.grad is not None
        found.append((total.detach(), logp.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("kind", ["llada", "dream", "sdar", "llada2"])
def test_models_do_not_read_labels_that_nothing_scores(tmp_path, kind):
    family = next(family for family in FAMILIES if family.kind == kind)
    adapter = family.load(family.write(tmp_path / kind, **family.spread))
    rows = toy_rows()
    views = bernoulli(draws=2).plan(rows, context_of(adapter))
    # In block layouts labels of valid positions are the clean copy that later blocks see.
    unread = ~views.scored if adapter.facts.layout.kind == "full" else ~views.valid
    other = replace(views, targets=torch.where(unread, adapter.facts.vocab_size + 90, views.targets))
    assert torch.equal(adapter.token_logp(views).logp, adapter.token_logp(other).logp)
