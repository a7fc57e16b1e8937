"""SFT on the Bernoulli ELBO: the estimate by enumeration, the loss by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
import torch
from tests.executor.toy_training import toy_rows
from tests.made_inputs import rows_of
from torch import Tensor

from dare_algos_elbo.config import SftSection
from dare_algos_elbo.estimators.bernoulli import Bernoulli
from dare_algos_elbo.estimators.config import BernoulliSection
from dare_algos_elbo.sft import Sft
from dare_core.data.rows import demonstration_rows
from dare_core.diffusion.schedules import alpha
from dare_core.interfaces import Objective, PlanContext
from dare_core.interfaces.model import ModelAdapter
from dare_core.testing.enumeration import exact_elbo
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Address, Demonstration, Progress, Prompt, Rows, Scores, Views


def context_of(adapter: ModelAdapter) -> PlanContext:
    return PlanContext(facts=adapter.facts, address=Address(7, "corruption", 2), layout=adapter.facts.layout)


def objective_of(rows: Rows, views: Views, estimator: Bernoulli, **options: object) -> Objective:
    return Objective(
        estimator=estimator, algorithm=Sft(SftSection(**options)), rows=rows, views=views, progress=Progress(0, 1)
    )


def one_row(adapter: ModelAdapter, answer: int = 3) -> Rows:
    """A prompt of two tokens and an answer of ``answer``."""
    tokens = torch.arange(2 + answer)[None] % (adapter.facts.vocab_size - 2)
    prompt = (torch.arange(2 + answer) < 2)[None]
    return rows_of(tokens, prompt, ~prompt)


def expectation_at(adapter: ModelAdapter, rows: Rows, estimator: Bernoulli, u: float) -> Tensor:
    """Expected estimate for the time of uniform ``u``, over every mask."""
    config, columns = estimator.config, rows.response[0].nonzero()[:, 0]
    time = torch.tensor([config.time_low + (config.time_high - config.time_low) * u], dtype=torch.float64)
    chance = 1 - alpha(config.schedule, time)[0]
    total = torch.zeros((), dtype=torch.float64)
    for pattern in range(1 << len(columns)):
        hidden = (torch.tensor(pattern) >> torch.arange(len(columns))) & 1 == 1
        uniform = torch.ones(rows.tokens.shape, dtype=torch.float64)
        uniform[0, columns[hidden]] = 0.0
        views = estimator.views(rows, context_of(adapter), torch.tensor([u], dtype=torch.float64), uniform)
        value = estimator.reduce(views, adapter.token_logp(views), rows).value[0]
        total = total + torch.where(hidden, chance, 1 - chance).prod() * value
    return total


def expectation(adapter: ModelAdapter, rows: Rows, estimator: Bernoulli, nodes: int) -> Tensor:
    """Expected estimate, over every mask and by Gauss-Legendre quadrature over time."""
    points, weights = numpy.polynomial.legendre.leggauss(nodes)
    at = [expectation_at(adapter, rows, estimator, float(x)) for x in (points + 1) / 2]
    return (torch.stack(at) * torch.from_numpy(weights / 2)).sum()


@pytest.mark.parametrize(
    "adapter", [ToyMasked(5, 8, seed=3), ToyBlock(5, 8, seed=3, block_length=2)], ids=["masked", "block"]
)
def test_expectation_is_the_elbo(adapter):
    rows = one_row(adapter)
    # At a fixed time the expectation is a polynomial in it, so three nodes are exact for three tokens.
    found = expectation(adapter, rows, Bernoulli(BernoulliSection(time_low=1e-14)), 3)
    torch.testing.assert_close(found, exact_elbo(adapter, rows), rtol=1e-12, atol=0)


def test_the_schedule_does_not_change_the_expectation():
    adapter = ToyMasked(5, 8, seed=3)
    rows = one_row(adapter)
    found = expectation(adapter, rows, Bernoulli(BernoulliSection(time_low=1e-14, schedule="cosine")), 12)
    torch.testing.assert_close(found, exact_elbo(adapter, rows), rtol=1e-12, atol=0)


def test_a_clamped_time_gives_the_clamped_integral():
    adapter, low = ToyMasked(5, 8, seed=3), 0.2
    rows = one_row(adapter)
    clamped = expectation(adapter, rows, Bernoulli(BernoulliSection(time_low=low)), 3)
    # The ELBO is the integral over [0, 1]; times below the clamp are never drawn and their share is spread.
    below = expectation(adapter, rows, Bernoulli(BernoulliSection(time_low=1e-14, time_high=low)), 3)
    torch.testing.assert_close((1 - low) * clamped + low * below, exact_elbo(adapter, rows), rtol=1e-12, atol=0)


def test_prompt_and_padding_are_never_hidden():
    adapter, rows = ToyMasked(8, 16), toy_rows(20)
    views = Bernoulli(BernoulliSection(draws=5)).plan(rows, context_of(adapter))
    hidden = views.inputs == adapter.facts.mask_id
    assert torch.equal(hidden, views.scored)
    assert not (hidden & ~rows.response[views.row]).any()
    assert torch.equal(views.inputs[~hidden], views.targets[~hidden])
    assert (views.weight[hidden] >= 1).all()
    assert (views.weight[~hidden] == 0).all()


def test_views_do_not_depend_on_batch_order():
    adapter, rows, order = ToyMasked(8, 16), toy_rows(6), torch.tensor([5, 2, 0, 1, 4, 3])
    shuffled = replace(
        rows,
        **{
            name: getattr(rows, name)[order]
            for name in ("tokens", "prompt", "response", "completion", "sample_id", "group")
        },
        example_id=tuple(rows.example_id[i] for i in order.tolist()),
    )
    estimator = Bernoulli(BernoulliSection())
    straight, other = (estimator.plan(given, context_of(adapter)) for given in (rows, shuffled))
    assert torch.equal(other.inputs, straight.inputs[order])
    assert torch.equal(other.weight, straight.weight[order])


def test_several_draws_are_averaged_with_their_standard_error():
    adapter, rows = ToyMasked(8, 16, seed=1), toy_rows()
    estimator = Bernoulli(BernoulliSection(draws=4))
    views = estimator.plan(rows, context_of(adapter))
    scores = adapter.token_logp(views)
    estimate = estimator.reduce(views, scores, rows)
    sums = (views.weight * scores.logp).sum(dim=1).view(6, 4)
    torch.testing.assert_close(estimate.value, sums.mean(dim=1))
    torch.testing.assert_close(estimate.stderr, sums.std(dim=1) / 2)
    weights = views.weight.amax(dim=1)[views.scored.any(dim=1)]
    assert len(weights.unique()) == len(weights) > 12


def made_case(padding: bool) -> tuple[Rows, Views]:
    """4 answer tokens and 2 of padding; hidden: answer positions 0 and 2, padding position 5; probability 1/2."""
    answer = (torch.arange(6) < (6 if padding else 4))[None]
    rows = rows_of(torch.arange(6)[None], torch.zeros_like(answer), answer)
    hidden = torch.isin(torch.arange(6), torch.tensor([0, 2, 5]))[None] & answer
    zero = torch.zeros(1, dtype=torch.int64)
    views = Views(
        inputs=rows.tokens.masked_fill(hidden, 9),
        targets=rows.tokens,
        valid=rows.valid,
        scored=hidden,
        weight=hidden * 2.0,
        row=zero,
        draw=zero,
        prompt_length=zero,
        layout=ToyMasked().facts.layout,
    )
    return rows, views


@pytest.mark.parametrize(
    ("padding", "normalizer", "padding_entropy", "weighted", "expected"),
    [
        (True, "supervised-tokens", 1.0, True, 1.0),
        (True, "supervised-tokens", 3.0, True, 10 / 6),
        (True, "sequence", 3.0, True, 10 / 6),
        (False, "supervised-tokens", 1.0, True, 1.0),
        (False, "supervised-tokens", 3.0, True, 1.0),
        (True, "noised-tokens", 1.0, False, 1.0),
        (True, "noised-tokens", 1.0, True, 2.0),
    ],
)
def test_padding_and_divisor_options(padding, normalizer, padding_entropy, weighted, expected):
    rows, views = made_case(padding)
    if not weighted:
        views = replace(views, weight=views.scored.float())
    entropy = torch.tensor([[1.0, 1.0, 1.0, 1.0, padding_entropy, padding_entropy]])
    objective = objective_of(rows, views, Bernoulli(BernoulliSection()), loss_normalizer=normalizer)
    assert float(objective(Scores(logp=-entropy * views.scored)).loss) == pytest.approx(expected)


def test_supervised_padding_is_part_of_the_rows_that_sft_asks_for():
    adapter = ToyMasked(8, 16)
    demonstrations = [
        Demonstration(Prompt(id="a", index=0, text="ab"), "c"),
        Demonstration(Prompt(id="b", index=1, text="ab"), "cabc"),
    ]
    sizes = {}
    for wanted in (True, False):
        algorithm = Sft(SftSection(supervise_padding=wanted))
        rows = demonstration_rows(
            demonstrations, adapter.text, adapter.facts, supervise_padding=algorithm.supervise_padding
        )
        sizes[wanted] = rows.response.sum(dim=1).tolist()
    assert sizes == {True: [5, 5], False: [2, 5]}


@pytest.mark.parametrize("normalizer", ["sequence", "supervised-tokens", "noised-tokens"])
def test_a_draw_that_hides_nothing_is_a_zero_with_a_graph(normalizer):
    adapter, rows = ToyMasked(8, 16), toy_rows()
    estimator = Bernoulli(BernoulliSection())
    ones = torch.ones(rows.tokens.shape, dtype=torch.float64)
    views = estimator.views(rows, context_of(adapter), torch.full((6,), 0.5, dtype=torch.float64), ones)
    scores = Scores(logp=torch.zeros(rows.tokens.shape, dtype=torch.float64)).leaves()
    loss = objective_of(rows, views, estimator, loss_normalizer=normalizer)(scores).loss
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(scores.logp.grad, torch.zeros_like(scores.logp))


def test_sequences_weigh_the_same_under_the_sequence_divisor():
    adapter, rows = ToyMasked(8, 16, strength=0.0), toy_rows()
    estimator = Bernoulli(BernoulliSection())
    views = estimator.plan(rows, context_of(adapter))
    views = replace(views, scored=rows.response, weight=rows.response.double())
    scores = Scores(logp=-rows.response.double())
    assert objective_of(rows, views, estimator)(scores).loss.item() == pytest.approx(1.0)


def test_an_empty_prompt_makes_it_the_pre_training_loss():
    adapter = ToyMasked(8, 16, seed=1)
    rows = demonstration_rows([Demonstration(Prompt(id="a", index=0, text=""), "abcabc")], adapter.text, adapter.facts)
    estimator = Bernoulli(BernoulliSection())
    views = estimator.plan(rows, context_of(adapter))
    scores = adapter.token_logp(views)
    loss = objective_of(rows, views, estimator)(scores).loss
    torch.testing.assert_close(loss, -(views.weight * scores.logp).sum() / rows.tokens.numel())


def test_an_estimate_per_token_is_refused():
    rows, views = made_case(True)
    objective = objective_of(rows, views, Bernoulli(BernoulliSection()))

    class PerToken(Bernoulli):
        def reduce(self, views: Views, scores: Scores, rows: Rows):
            return replace(super().reduce(views, scores, rows), per="token")

    with pytest.raises(TypeError, match="not per token"):
        replace(objective, estimator=PerToken(BernoulliSection()))(Scores(logp=torch.zeros(1, 6)))


def test_a_confidence_term_adds_the_entropy_where_the_model_is_right():
    adapter, rows = ToyMasked(8, 16, seed=1), toy_rows()
    estimator = Bernoulli(BernoulliSection(time_low=0.3, time_high=0.8, weight="none"))
    views = estimator.plan(rows, context_of(adapter))
    scores = adapter.token_logp(views, entropy=True)
    plain, sure = (
        objective_of(rows, views, estimator, loss_normalizer="noised-tokens", confidence_weight=w)(scores).loss
        for w in (0.0, 0.5)
    )
    right = views.scored & scores.correct
    assert 0 < int(right.sum()) < int(views.scored.sum())
    torch.testing.assert_close(sure - plain, 0.5 * scores.entropy[right].mean())
    torch.testing.assert_close(plain, -scores.logp[views.scored].mean())
    with pytest.raises(TypeError, match="scores with entropies"):
        objective_of(rows, views, estimator, confidence_weight=0.5)(replace(scores, entropy=None))


def test_a_confidence_term_is_not_taken_row_by_row():
    assert Sft(SftSection()).separable_by == "row"
    confident = Sft(SftSection(confidence_weight=0.1))
    assert confident.separable_by is None
    assert confident.uses_entropy


def test_cropped_rows_are_divided_by_what_is_left():
    adapter, rows = ToyMasked(8, 16, strength=0.0), toy_rows()
    estimator = Bernoulli(BernoulliSection(crop="batch", time_low=1 - 1e-12))
    contexts = [replace(context_of(adapter), address=Address(7, "corruption", step)) for step in range(9)]
    views = min((estimator.plan(rows, context) for context in contexts), key=lambda plan: int(plan.scored.sum()))
    scores = Scores(logp=-views.scored.double())
    assert views.scored.sum() < rows.response.sum()
    for normalizer in ("sequence", "supervised-tokens", "noised-tokens"):
        loss = objective_of(rows, views, estimator, loss_normalizer=normalizer)(scores).loss
        assert loss.item() == pytest.approx(1.0)
