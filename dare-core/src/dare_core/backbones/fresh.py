"""Random weights by address: a parameter's values depend on the run's seed, its name and the place in it.

Entries are normal(0, std), by the inverse normal distribution function of addressed uniforms, so that no
global generator is read or moved and the same spec gives the same start on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from dare_core.diffusion.seeds import uniforms
from dare_core.types import Address

_ROWS, _ELEMENTS = 1024, 1 << 22


def addressed_uniform(seed: int, name: str, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Float64 uniforms in (0, 1) for a matrix or vector called ``name``."""
    address = Address(seed, f"weights/{name}")
    width = math.prod(shape[1:])
    return torch.cat([uniforms(address, rows, 0, width) for rows in _row_chunks(shape[0], width)]).reshape(shape)


def fill_normal(parameter: Tensor, seed: int, name: str, std: float) -> None:
    """Fill in place with addressed normal(0, std)."""
    shape = parameter.shape
    width = math.prod(shape[1:])
    flat = parameter.view(shape[0], width)
    address = Address(seed, f"weights/{name}")
    with torch.no_grad():
        for rows in _row_chunks(shape[0], width):
            normal = math.sqrt(2.0) * torch.erfinv(2 * uniforms(address, rows, 0, width) - 1)
            flat[rows[0] : rows[-1] + 1] = (std * normal).to(flat.dtype)


def _row_chunks(count: int, width: int) -> Iterator[Tensor]:
    # Stacked experts have few rows of millions of entries.
    step = max(1, min(_ROWS, _ELEMENTS // max(1, width)))
    return (torch.arange(start, min(start + step, count)) for start in range(0, count, step))


def initialise(module: nn.Module, seed: int, std: Callable[[str], float | None]) -> None:
    """Give every parameter its first values.

    Args:
        module: allocated, with unspecified values.
        seed: the run's.
        std: parameter name -> standard deviation, or None for scales of normalisation layers, which start at 1.
    """
    for name, parameter in module.named_parameters():
        spread = std(name)
        if spread is None:
            nn.init.ones_(parameter)
        else:
            fill_normal(parameter, seed, name, spread)
