"""A value head: what a state is worth, one number per scored position.

v = h w with the normalised hidden state h [H] that predicts the position's token and w [1,H] without bias, as in
TraceRL's value models (arXiv:2509.06949). w starts at zero: a fresh value model says 0 everywhere.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dare_core.backbones.head import project
from dare_core.errors import Problem, UserError

#: file of a saved head, beside the weights it belongs to
FILE = "value_head.safetensors"
_KEY = "value_head.weight"


def attach(module: nn.Module, like: Tensor, folder: Path | None) -> nn.Linear:
    """The head, as ``module.value_head``; the output head [V,H] ``like`` has nothing to learn any more.

    Args:
        module: the model.
        like: its output head, for width, dtype and device.
        folder: a head saved there is taken over.

    Raises:
        UserError: the saved head is of another width.
    """
    head = nn.Linear(like.shape[1], 1, bias=False, device=like.device, dtype=like.dtype)
    with torch.no_grad():
        head.weight.zero_()
        if folder is not None and (folder / FILE).is_file():
            found = load_file(folder / FILE).get(_KEY)
            if found is None or found.shape != head.weight.shape:
                got = "nothing" if found is None else tuple(found.shape)
                message = f"tensor '{_KEY}' must have shape {tuple(head.weight.shape)}, found {got}"
                raise UserError(Problem(message, where=str(folder / FILE)))
            head.weight.copy_(found)
    module.value_head = head
    return head


def values_of(hidden: Tensor, head: nn.Linear) -> Tensor:
    """[M] values of hidden states [M,H], in float32 at least."""
    return project(hidden, head.weight)[:, 0]


def save(head: nn.Linear, folder: Path) -> None:
    """Write the head into a saved model's folder."""
    save_file({_KEY: head.weight.detach().contiguous()}, folder / FILE)
