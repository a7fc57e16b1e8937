"""Which positions a view hides, and what it holds there. Pure functions of uniform numbers and addresses.

Masked (absorbing) diffusion hides each position independently with probability 1 - alpha(t) (Sahoo et al. 2024,
arXiv:2406.07524; Nie et al. 2025, LLaDA, arXiv:2502.09992), t uniform; alpha and the ELBO's weights are in
:mod:`dare_core.diffusion.schedules`.

Models of uniform noise have no mask token: a hidden position holds a token drawn uniformly from the vocabulary (Austin
et al. 2021, arXiv:2107.03006). Scored at hidden positions and weighted as masked diffusion is, such views bound the
likelihood too: that of the model which decides tokens in random order while undecided positions hold random ones. By
concavity the mean of a log-probability over random tokens lies below the log of its mean, whose chain rule is that of
any order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_core.diffusion.seeds import uniforms
from dare_core.errors import Problem, UserError
from dare_core.types import Address, AttentionLayout, ModelFacts, Rows, Views


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


def random_tokens(uniform: Tensor, vocab_size: int) -> Tensor:
    """What hidden positions hold where there is no mask token: any id of the vocabulary, the own one included.

    Args:
        uniform: any shape, numbers in [0, 1).
        vocab_size: V.

    Returns:
        int64 of that shape.
    """
    return (uniform * vocab_size).long()


def view_noise(facts: ModelFacts, address: Address, sample: Tensor, draw: Tensor, width: int) -> Tensor | None:
    """[N,L] int64 random tokens of the views of ``sample`` [N] and ``draw`` [N]; None for models with a mask token."""
    if facts.noise == "mask":
        return None
    return random_tokens(uniforms(address.within("noise"), sample, draw, width), facts.vocab_size)


def build_views(
    rows: Rows,
    hidden: Tensor,
    *,
    mask_id: int | None,
    noise: Tensor | None = None,
    layout: AttentionLayout,
    row: Tensor,
    draw: Tensor,
    scored: Tensor | None = None,
    weight: Tensor | None = None,
) -> Views:
    """Views of rows with the hidden positions replaced by the mask token or by random tokens.

    Args:
        rows: B clean rows.
        hidden: [N,L] bool positions whose token is not seen.
        mask_id: the mask token.
        noise: [N,L] int64 tokens that hidden positions hold instead, where there is no mask token.
        layout: how the views attend.
        row: [N] int64 row of each view.
        draw: [N] int64 draw or step of each view.
        scored: [N,L] bool; default: the hidden response positions.
        weight: [N,L] or [N,1] float; default 1. Set to 0 where not scored.

    Raises:
        UserError: there is neither a mask token nor noise, or a row holds the mask token as clean text (its id is
            named).
    """
    held = _mask_token(rows, mask_id) if noise is None else noise
    scored = hidden & rows.response[row] if scored is None else scored
    weight = torch.ones((), device=hidden.device) if weight is None else weight
    tokens = rows.tokens[row]
    return Views(
        inputs=torch.where(hidden, held, tokens),
        targets=tokens,
        valid=rows.valid[row],
        scored=scored,
        weight=torch.where(scored, weight, torch.zeros_like(weight)),
        row=row,
        draw=draw,
        prompt_length=rows.prompt_length[row],
        layout=layout,
    )


def _mask_token(rows: Rows, mask_id: int | None) -> int:
    if mask_id is None:
        raise UserError(Problem("this model has no mask token, so views cannot hide tokens with it", path="likelihood"))
    holds_mask = ((rows.tokens == mask_id) & rows.valid).any(dim=1)
    if bool(holds_mask.any()):
        example = rows.example_id[int(holds_mask.nonzero()[0])]
        raise UserError(
            Problem(f"the clean tokens hold the mask token {mask_id}", where=example, hint="remove it from the text")
        )
    return mask_id
