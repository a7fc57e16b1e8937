"""Every outcome of an estimator's random numbers, so that means and variances are exact."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy
import torch
from torch import Tensor

from dare_algos_elbo.estimators.bernoulli import Bernoulli
from dare_algos_elbo.estimators.block_stratified import BlockStratified
from dare_algos_elbo.estimators.counts import CountEstimator
from dare_algos_elbo.estimators.draws import DrawEstimator, Lines
from dare_core.diffusion.layouts import block_index
from dare_core.diffusion.schedules import alpha
from dare_core.interfaces import PlanContext
from dare_core.interfaces.model import ModelAdapter
from dare_core.types import Address, Rows, Views


def context_of(adapter: ModelAdapter, purpose: str = "corruption") -> PlanContext:
    """A plan context of this toy."""
    return PlanContext(facts=adapter.facts, address=Address(7, purpose, 2), layout=adapter.facts.layout)


def numbers_of(order: Tensor, where: Tensor, *, gathered: bool = False) -> Tensor:
    """[N,L] numbers that put maskable positions into a recorded order.

    Args:
        order: [N,n] permutations of the maskable positions, -1 padded.
        where: [N,L] bool maskable positions.
        gathered: the permutation holds each position's own place; otherwise the positions, first to hide first.
    """
    numbers = torch.ones(where.shape, dtype=torch.float64)
    for line, columns in enumerate(where):
        places = order[line][order[line] >= 0]
        column = columns.nonzero()[:, 0][: len(places)]
        rank = places if gathered else places.argsort()
        numbers[line, column] = rank.to(torch.float64) / where.shape[1]
    return numbers


def orders(size: int) -> Tensor:
    """[size!,size] every permutation."""
    return torch.tensor(list(itertools.permutations(range(size))), dtype=torch.int64).view(-1, size)


def value_of(estimator: DrawEstimator, adapter: ModelAdapter, rows: Rows, views: Views) -> Tensor:
    """The estimate of the one row."""
    return estimator.reduce(views, adapter.token_logp(views), rows).value[0]


def count_outcomes(estimator: CountEstimator, adapter: ModelAdapter, rows: Rows) -> Iterator[Views]:
    """Equally likely plans of one row: every start of its systematic counts and every order in every draw."""
    draws, size = estimator.config.draws, int(rows.response.sum())
    lines = Lines.of(rows, draws, "row")
    where = rows.response[lines.row]
    high = torch.full((draws,), size)
    for start in range(estimator.low, size + 1):
        count = estimator.counts(lines, torch.full((draws,), start), high)
        for chosen in itertools.product(orders(size), repeat=draws):
            yield estimator.views(rows, context_of(adapter), count, numbers_of(torch.stack(chosen), where))


def block_outcomes(estimator: BlockStratified, adapter: ModelAdapter, rows: Rows) -> Iterator[Views]:
    """Equally likely plans of one row: a grid of first levels finer than any step, and every order in every block."""
    draws = estimator.config.draws
    block = block_index(rows.valid, rows.prompt_length, adapter.facts.layout)[0]
    columns = [((block == b) & rows.response[0]).nonzero()[:, 0] for b in block[rows.response[0]].unique()]
    grid = math.lcm(*(len(part) for part in columns)) * len(columns) * draws
    choices = [orders(len(part)) for part in columns] * draws
    for cell in range(grid):
        first = torch.full((draws,), (cell + 0.5) / grid, dtype=torch.float64)
        for chosen in itertools.product(*choices):
            numbers = torch.ones((draws, rows.tokens.shape[1]), dtype=torch.float64)
            for index, order in enumerate(chosen):
                numbers[index // len(columns), columns[index % len(columns)]] = order.argsort().double() / 99
            yield estimator.views(rows, context_of(adapter), first, numbers)


def values(estimator: DrawEstimator, adapter: ModelAdapter, rows: Rows) -> Tensor:
    """[outcomes] estimates of all equally likely plans."""
    outcomes = block_outcomes if isinstance(estimator, BlockStratified) else count_outcomes
    return torch.stack([value_of(estimator, adapter, rows, v) for v in outcomes(estimator, adapter, rows)]).detach()


def bernoulli_mean_at(adapter: ModelAdapter, rows: Rows, estimator: Bernoulli, u: float) -> Tensor:
    """Expected estimate for the time of uniform ``u``, over every mask of one row."""
    config, columns = estimator.config, rows.response[0].nonzero()[:, 0]
    time = torch.tensor([config.time_low + (config.time_high - config.time_low) * u], dtype=torch.float64)
    chance = 1 - alpha(config.schedule, time)[0]
    total = torch.zeros((), dtype=torch.float64)
    for pattern in range(1 << len(columns)):
        hidden = (torch.tensor(pattern) >> torch.arange(len(columns))) & 1 == 1
        uniform = torch.ones(rows.tokens.shape, dtype=torch.float64)
        uniform[0, columns[hidden]] = 0.0
        views = estimator.views(rows, context_of(adapter), torch.tensor([u], dtype=torch.float64), uniform)
        value = value_of(estimator, adapter, rows, views)
        total = total + torch.where(hidden, chance, 1 - chance).prod() * value
    return total


def bernoulli_mean(adapter: ModelAdapter, rows: Rows, estimator: Bernoulli, nodes: int) -> Tensor:
    """Expected estimate of one row, over every mask and by Gauss-Legendre quadrature over time."""
    points, weights = numpy.polynomial.legendre.leggauss(nodes)
    at = [bernoulli_mean_at(adapter, rows, estimator, float(x)) for x in (points + 1) / 2]
    return (torch.stack(at) * torch.from_numpy(weights / 2)).sum()
