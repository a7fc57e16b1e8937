"""Dropout: where it is, and addressed seeds for it.

Two-pass updates compute every view twice and need the same numbers both times, so they refuse dropout.
In one-pass updates torch's dropout is given a generator state that follows from the draw's address, and the
state it found is put back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dare_core.diffusion.seeds import uniforms
from dare_core.types import Address


def dropout_modules(module: nn.Module) -> list[str]:
    """Names of modules that drop something while training."""
    return [
        name
        for name, part in module.named_modules()
        if (isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0)
        or (isinstance(getattr(part, "attention_dropout", None), float) and part.attention_dropout > 0)
    ]


@contextmanager
def addressed_dropout(address: Address, device: torch.device) -> Iterator[None]:
    """While open, dropout draws follow from ``address`` alone."""
    number = int(uniforms(address, torch.zeros(1, dtype=torch.int64), 0, 1).item() * 2**52)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.set_rng_state(torch.Generator().manual_seed(number).get_state())
        if devices:
            torch.cuda.set_rng_state(torch.Generator(device).manual_seed(number).get_state(), device)
        yield
