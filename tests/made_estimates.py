"""Views with recorded hidden positions, and losses on estimates per row or per view that are given as numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_core.diffusion.corruption import build_views
from dare_core.interfaces import Algorithm
from dare_core.types import (
    Advantages,
    AttentionLayout,
    Estimate,
    LossInputs,
    LossOutput,
    Progress,
    Rows,
    Scores,
    Views,
)
from tests.made_inputs import rows_of


def leaf(tensor: Tensor) -> Tensor:
    """A copy that collects a gradient."""
    return tensor.clone().requires_grad_()


def recorded_views(rows: Rows, hidden: Tensor, weight: Tensor, mask_id: int, scored: Tensor | None = None) -> Views:
    """Views [B x D] of rows with recorded hidden positions [B,D,L] and weights."""
    count, draws, _ = hidden.shape
    return build_views(
        rows,
        hidden.flatten(0, 1),
        mask_id=mask_id,
        layout=AttentionLayout(),
        row=torch.arange(count).repeat_interleave(draws),
        draw=torch.arange(draws).repeat(count),
        scored=None if scored is None else scored.flatten(0, 1),
        weight=weight.flatten(0, 1),
    )


def made_rows(count: int, lengths: Tensor | int) -> Rows:
    """Rows without prompt, whose responses have these lengths."""
    lengths = torch.as_tensor(lengths).expand(count)
    response = torch.arange(int(lengths.max())) < lengths[:, None]
    return rows_of(torch.zeros(response.shape, dtype=torch.int64), torch.zeros_like(response), response)


def loss_of(
    algorithm: Algorithm,
    live: Tensor,
    *,
    rows: Rows | None = None,
    lengths: Tensor | int = 1,
    row: Tensor | None = None,
    draws: int = 1,
    old: Tensor | None = None,
    reference: Tensor | None = None,
    advantages: Tensor | None = None,
    usable: Tensor | None = None,
    upper: Tensor | None = None,
) -> LossOutput:
    """The algorithm's loss on given estimates, per row [B], or with ``row`` [N] per view."""
    count = len(live) if row is None else int(row.max()) + 1
    rows = made_rows(count, lengths) if rows is None else rows
    per = "row" if row is None else "view"
    row = torch.arange(count) if row is None else row
    hidden = rows.response[row]
    views = build_views(
        rows, hidden, mask_id=99, layout=AttentionLayout(), row=row, draw=torch.zeros_like(row), weight=None
    )

    def estimate(value: Tensor, upper: Tensor | None = None) -> Estimate:
        mask = torch.ones_like(value, dtype=torch.bool)
        return Estimate(value=value, per=per, bound="lower", mask=mask, upper=upper, draws=draws)

    given = None
    if advantages is not None:
        usable = torch.ones(count, dtype=torch.bool) if usable is None else usable
        given = Advantages(value=advantages, usable=usable)
    return algorithm.loss(
        LossInputs(
            rows=rows,
            views=views,
            scores=Scores(logp=torch.zeros(views.inputs.shape)),
            live=estimate(live, upper),
            old=estimate(live.detach() if old is None else old),
            reference=None if reference is None else estimate(reference),
            advantages=given,
            progress=Progress(step=0, total=1),
        )
    )
