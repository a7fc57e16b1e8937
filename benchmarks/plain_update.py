"""The plain ways to gather gradients that ``update.py`` measures against.

One forward and one backward per draw, the output head over the full vocabulary at all positions, the loss at the
hidden ones. *Padded*: a batch as wide as its longest row, padding masked as a key only, log-probabilities by
``cross_entropy``, as trainers on transformers' models write it. *Packed*: the batch's tokens in one row, attention
sequence by sequence, then as the published packed trainers of diffusion models do (DARE, arXiv:2604.04215): the logits
of each row are put back at its padded width and ``cross_entropy`` reads the hidden ones. *Gathered*: packed as well,
but the loss straight on the packed logits, as a gathered logit less a logsumexp token by token; no published trainer
of a diffusion model is so lean, it shows what is left against the best of plain ways.
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
    """All tokens in one row, the logits of each sequence put back at the batch's width."""
    logits = _packed_logits(module, views)
    valid, hidden = views.valid, views.scored
    ends = valid.sum(dim=1).cumsum(dim=0).tolist()
    loss = logits.new_zeros(())
    for row, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        own = logits.new_zeros(valid.shape[1], logits.shape[1])
        own[valid[row]] = logits[start:end]
        nll = cross_entropy(own[hidden[row]], views.targets[row][hidden[row]], reduction="none")
        loss = loss + (nll * views.weight[row][hidden[row]]).sum()
    torch.autograd.backward(loss)


def gather_gathered(module: Any, views: Views) -> None:
    """All tokens in one row, and no copy of a logit."""
    logits, valid = _packed_logits(module, views), views.valid
    own = logits.gather(1, views.targets[valid][:, None])[:, 0]
    logp = own - torch.stack([row.logsumexp(dim=0) for row in logits])
    torch.autograd.backward(-(logp * views.weight[valid]).sum())


#: the plain ways by name
WAYS: dict[str, Gather] = {"padded": gather_padded, "packed": gather_packed, "gathered": gather_gathered}


def _packed_logits(module: Any, views: Views) -> Tensor:
    """[T,V] of the batch's T tokens, sequence after sequence."""
    valid = views.valid
    place = (valid.cumsum(dim=1) - 1)[valid]
    with _attention(module, "plain-packed"):
        states = module.model(
            input_ids=views.inputs[valid][None],
            position_ids=place[None],
            use_cache=False,
            lengths=valid.sum(dim=1).tolist(),
        ).last_hidden_state
    logits: Tensor = module.lm_head(states)[0].float()
    return logits


@contextmanager
def _attention(module: Any, name: str) -> Iterator[None]:
    config = module.config
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before
