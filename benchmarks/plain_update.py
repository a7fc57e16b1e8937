"""The two plain ways to gather gradients that ``update.py`` measures against.

As published trainers do: one forward and one backward per draw, the output head over the full vocabulary at all
positions, the loss at the hidden ones. *Padded*: a batch as wide as its longest row, padding masked as a key only,
log-probabilities by ``cross_entropy``, as trainers on transformers' models write it. *Packed*: the batch's tokens in
one row, attention sequence by sequence, log-probabilities as a gathered logit less a logsumexp token by token, as the
trainers of large RL frameworks write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import AttentionInterface

from dare_core.types import Views


def _padded_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **more: Any
) -> tuple[Tensor, None]:
    mixed = scaled_dot_product_attention(query, key, value, attn_mask=more["valid"][:, None, None], scale=scaling)
    return mixed.transpose(1, 2), None


def _packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **more: Any
) -> tuple[Tensor, None]:
    pieces = (part.split(more["lengths"], dim=2) for part in (query, key, value))
    mixed = [scaled_dot_product_attention(*parts, scale=scaling) for parts in zip(*pieces, strict=True)]
    return torch.cat(mixed, dim=2).transpose(1, 2), None


AttentionInterface.register("plain-padded", _padded_attention)
AttentionInterface.register("plain-packed", _packed_attention)

#: gathers the gradient of sum(weight * -log p) over the hidden positions of one view per row
Gather = Callable[[Any, Views], None]


def gather_padded(module: Any, views: Views) -> None:
    """Rows as wide as the longest."""
    width = int(views.valid.sum(dim=1).max())
    inputs, valid, targets, weight = (
        part[:, :width] for part in (views.inputs, views.valid, views.targets, views.weight)
    )
    with _attention(module, "plain-padded"):
        states = module.model(input_ids=inputs, use_cache=False, valid=valid).last_hidden_state
    logits = module.lm_head(states).flatten(0, 1).float()
    nll = cross_entropy(logits, targets.flatten(), reduction="none")
    torch.autograd.backward((nll * weight.flatten()).sum())


def gather_packed(module: Any, views: Views) -> None:
    """All tokens in one row."""
    valid = views.valid
    place = (valid.cumsum(dim=1) - 1)[valid]
    with _attention(module, "plain-packed"):
        states = module.model(
            input_ids=views.inputs[valid][None],
            position_ids=place[None],
            use_cache=False,
            lengths=valid.sum(dim=1).tolist(),
        ).last_hidden_state
    logits = module.lm_head(states)[0].float()
    own = logits.gather(1, views.targets[valid][:, None])[:, 0]
    logp = own - torch.stack([row.logsumexp(dim=0) for row in logits])
    torch.autograd.backward(-(logp * views.weight[valid]).sum())


@contextmanager
def _attention(module: Any, name: str) -> Iterator[None]:
    config = module.config
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before
