"""Exact quantities of short rows, by enumeration: what estimators and decoders are checked against.

Notation: M is a set of masked response positions, l_i(M) = log p(y_i | x, y with M masked). The ELBO of a
response of n tokens has two equal finite forms,

    sum_k (1/k) E_{|M|=k} sum_{i in M} l_i(M)  =  mean over orders of sum_j log p(y_{o_j} | x, y_{o_<j}),

and log of the mean over orders of the product is the likelihood of the order mixture (Jensen: at least the ELBO).
Costs grow as 2^n and n!; rows of more than ten response tokens are refused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.diffusion.layouts import block_index
from dare_core.interfaces import ModelAdapter
from dare_core.types import AttentionLayout, Rows, Views

_LONGEST = 10


@dataclass(frozen=True)
class SubsetTable:
    """l_i(M) for every masked set of one row.

    Attributes:
        columns: response columns, n of them.
        masked: [2^n-1,n] bool the sets, in binary order (column 0 is the lowest bit).
        logp: [2^n-1,n] log-probability of each token of the set; 0 outside it.
    """

    columns: Tensor
    masked: Tensor
    logp: Tensor

    def total(self, members: Sequence[int]) -> Tensor:
        """[n] the row of ``logp`` for the set of these response offsets."""
        return self.logp[sum(1 << member for member in members) - 1]


def subset_table(
    adapter: ModelAdapter, rows: Rows, row: int = 0, *, layout: AttentionLayout | None = None, temperature: float = 1.0
) -> SubsetTable:
    """Score every masked set of one row's response; the adapter's own layout unless ``layout`` is given.

    Gradients flow if they are enabled. In block layouts l_i(M) depends on the members of i's own block only.

    Raises:
        ValueError: the response has more than ten tokens.
    """
    columns = rows.response[row].nonzero()[:, 0]
    count = len(columns)
    if not 0 < count <= _LONGEST:
        raise ValueError(f"enumeration is for 1 to {_LONGEST} response tokens, not {count}")
    sets = torch.arange(1, 1 << count)
    masked = (sets[:, None] >> torch.arange(count)) & 1 == 1
    views = views_of_sets(adapter, rows, row, masked, layout=layout, temperature=temperature)
    return SubsetTable(columns, masked, adapter.token_logp(views).logp[:, columns])


def views_of_sets(
    adapter: ModelAdapter,
    rows: Rows,
    row: int,
    masked: Tensor,
    *,
    layout: AttentionLayout | None = None,
    temperature: float = 1.0,
) -> Views:
    """One view per masked set of a row's response, all masked tokens scored with weight 1.

    Args:
        adapter: gives mask id and layout.
        rows: the batch.
        row: which of its rows.
        masked: [N,n] bool over the response's n columns.
        layout: the adapter's own unless given.
        temperature: of the scores.
    """
    count, columns = len(masked), rows.response[row].nonzero()[:, 0]
    scored = torch.zeros(count, rows.tokens.shape[1], dtype=torch.bool)
    scored[:, columns] = masked
    targets = rows.tokens[row].expand(count, -1)
    return Views(
        inputs=targets.masked_fill(scored, mask_id(adapter)),
        targets=targets,
        valid=rows.valid[row].expand(count, -1),
        scored=scored,
        weight=scored.to(torch.float64),
        row=torch.full((count,), row),
        draw=torch.arange(count),
        prompt_length=rows.prompt_length[row].expand(count),
        layout=layout or adapter.facts.layout,
        temperature=temperature,
    )


def mask_id(adapter: ModelAdapter) -> int:
    """The adapter's mask token.

    Raises:
        ValueError: the model has none (uniform noise).
    """
    if adapter.facts.mask_id is None:
        raise ValueError(f"{adapter.facts.kind} has no mask token")
    return adapter.facts.mask_id


def exact_elbo(adapter: ModelAdapter, rows: Rows, row: int = 0, *, temperature: float = 1.0) -> Tensor:
    """Scalar ELBO of one row in subset form; the sum over blocks for block models."""
    return token_elbo(adapter, rows, row, temperature=temperature).sum()


def token_elbo(adapter: ModelAdapter, rows: Rows, row: int = 0, *, temperature: float = 1.0) -> Tensor:
    """[L] each token's share of the ELBO; 0 outside the response. Blocks are taken one by one for block models."""
    table = subset_table(adapter, rows, row, temperature=temperature)
    share = torch.zeros(rows.tokens.shape[1], dtype=table.logp.dtype)
    for members in _blocks(adapter, rows, row, table):
        # Sets inside one block; what is masked elsewhere changes nothing in a block layout.
        for size in range(1, len(members) + 1):
            weight = 1.0 / (size * math.comb(len(members), size))
            for chosen in itertools.combinations(members, size):
                share = share.index_add(0, table.columns, weight * table.total(chosen))
    return share


def exact_elbo_by_orders(adapter: ModelAdapter, rows: Rows, row: int = 0, *, temperature: float = 1.0) -> Tensor:
    """Scalar ELBO of one row as the mean log-likelihood over generation orders (blocks left to right)."""
    return torch.stack([logp for _, logp in order_logps(adapter, rows, row, temperature=temperature)]).mean()


def log_mean_over_orders(adapter: ModelAdapter, rows: Rows, row: int = 0, *, temperature: float = 1.0) -> Tensor:
    """Scalar log-likelihood of the mixture over uniform orders; at least the ELBO."""
    logps = torch.stack([logp for _, logp in order_logps(adapter, rows, row, temperature=temperature)])
    return logps.logsumexp(dim=0) - math.log(len(logps))


def order_logps(
    adapter: ModelAdapter, rows: Rows, row: int = 0, *, temperature: float = 1.0
) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Every order of response offsets, one token per step and blocks left to right, with its log-likelihood."""
    table = subset_table(adapter, rows, row, temperature=temperature)
    blocks = _blocks(adapter, rows, row, table)
    for parts in itertools.product(*(itertools.permutations(members) for members in blocks)):
        order = tuple(itertools.chain.from_iterable(parts))
        steps = [table.total(order[step:])[order[step]] for step in range(len(order))]
        yield order, torch.stack(steps).sum()


def _blocks(adapter: ModelAdapter, rows: Rows, row: int, table: SubsetTable) -> list[list[int]]:
    """Response offsets by block of the adapter's layout, left to right."""
    index = block_index(rows.valid[row : row + 1], rows.prompt_length[row : row + 1], adapter.facts.layout)
    blocks: dict[int, list[int]] = {}
    for offset, block in enumerate(index[0, table.columns].tolist()):
        blocks.setdefault(block, []).append(offset)
    return [blocks[block] for block in sorted(blocks)]
