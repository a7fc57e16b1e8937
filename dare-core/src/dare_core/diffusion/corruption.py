"""Which positions a view hides. Pure functions of uniform numbers; nothing here draws.

Masked (absorbing) diffusion hides each position independently with probability 1 - alpha(t) (Sahoo et al. 2024,
arXiv:2406.07524; Nie et al. 2025, LLaDA, arXiv:2502.09992), t uniform; alpha and the ELBO's weights are in
:mod:`dare_core.diffusion.schedules`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_core.errors import Problem, UserError
from dare_core.types import AttentionLayout, Rows, Views


def times(uniform: Tensor, low: float, high: float = 1.0) -> Tensor:
    """Times in [low, high) from uniforms: ``low + (high - low) u``. LLaDA: low = 1e-3, high = 1."""
    return (high - low) * uniform + low


def bernoulli_mask(uniform: Tensor, probability: Tensor | float, maskable: Tensor) -> Tensor:
    """[N,L] bool: maskable positions whose uniform number lies strictly below the probability.

    Args:
        uniform: [N,L] numbers in [0, 1).
        probability: scalar, [N,1] or [N,L].
        maskable: [N,L] bool.
    """
    return (uniform < probability) & maskable


def complementary_masks(uniform: Tensor, ratio: Tensor | float, maskable: Tensor) -> tuple[Tensor, Tensor]:
    """Two [N,L] masks that together hide each maskable position exactly once: ``u < ratio`` and its complement."""
    first = bernoulli_mask(uniform, ratio, maskable)
    return first, maskable & ~first


def build_views(
    rows: Rows,
    hidden: Tensor,
    *,
    mask_id: int | None,
    layout: AttentionLayout,
    row: Tensor,
    draw: Tensor,
    scored: Tensor | None = None,
    weight: Tensor | None = None,
) -> Views:
    """Views of rows with the hidden positions replaced by the mask token.

    Args:
        rows: B clean rows.
        hidden: [N,L] bool positions that hold the mask token.
        mask_id: the mask token.
        layout: how the views attend.
        row: [N] int64 row of each view.
        draw: [N] int64 draw or step of each view.
        scored: [N,L] bool; default: the hidden response positions.
        weight: [N,L] or [N,1] float; default 1. Set to 0 where not scored.

    Raises:
        UserError: the model has no mask token, or a row holds it as clean text (its id is named).
    """
    if mask_id is None:
        raise UserError(Problem("this model has no mask token, so views cannot hide tokens with it", path="likelihood"))
    holds_mask = ((rows.tokens == mask_id) & rows.valid).any(dim=1)
    if bool(holds_mask.any()):
        example = rows.example_id[int(holds_mask.nonzero()[0])]
        raise UserError(
            Problem(f"the clean tokens hold the mask token {mask_id}", where=example, hint="remove it from the text")
        )
    scored = hidden & rows.response[row] if scored is None else scored
    weight = torch.ones((), device=hidden.device) if weight is None else weight
    tokens = rows.tokens[row]
    return Views(
        inputs=torch.where(hidden, mask_id, tokens),
        targets=tokens,
        valid=rows.valid[row],
        scored=scored,
        weight=torch.where(scored, weight, torch.zeros_like(weight)),
        row=row,
        draw=draw,
        prompt_length=rows.prompt_length[row],
        layout=layout,
    )
