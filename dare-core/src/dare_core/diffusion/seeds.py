"""Addressed random numbers: a pure function from an address to uniforms.

A draw's address is (seed, purpose, step, sample id, draw, position). Numbers come from SplitMix64
(Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), computed with
integer tensor operations, so they are the same on any device, in any batch arrangement and on any
number of processes, and no global generator is read or moved.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from dare_core.types import Address

_WRAP = 1 << 64


def _signed(value: int) -> int:
    value %= _WRAP
    return value - _WRAP if value >= _WRAP >> 1 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    # int64 shifts carry the sign; the mask makes it the unsigned shift that the algorithm wants.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def _key(address: Address) -> int:
    text = f"{address.seed}\x1f{address.purpose}\x1f{address.step}".encode()
    return _signed(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))


def uniforms(address: Address, sample: Tensor, draw: Tensor | int, width: int) -> Tensor:
    """Uniform numbers in the open interval (0, 1), one per position.

    Args:
        address: seed, purpose and step.
        sample: [N] int64 sample ids.
        draw: [N] int64 draw within the sample, or one for all.
        width: positions, W.

    Returns:
        [N,W] float64 on the device of ``sample``; entry (i, j) depends on the address, ``sample[i]``,
        ``draw[i]`` and ``j`` only: growing ``width`` or permuting rows changes no number.
    """
    draws = torch.as_tensor(draw, dtype=torch.int64, device=sample.device).expand(sample.shape)
    stream = _mix(_mix(sample + _key(address)) + draws * _GAMMA + 1)
    position = torch.arange(1, width + 1, dtype=torch.int64, device=sample.device)
    bits = _shift_right(_mix(stream[:, None] + position * _GAMMA), 12)
    return (bits.to(torch.float64) + 0.5) * 2.0**-52


def batch_uniforms(address: Address, width: int, device: torch.device | str = "cpu") -> Tensor:
    """[W] float64 uniforms shared by a whole batch (systematic draws), addressed by (seed, purpose, step)."""
    return uniforms(address, torch.full((1,), -1, dtype=torch.int64, device=device), 0, width)[0]


def permutations(address: Address, sample: Tensor, draw: Tensor | int, width: int) -> Tensor:
    """[N,W] int64: an independent uniform permutation of 0..W-1 per row."""
    return uniforms(address, sample, draw, width).argsort(dim=1)
