"""The random numbers that a denoising loop consumes, by place, so that recorded ones can be fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dare_core.diffusion.seeds import uniforms
from dare_core.types import Address

# A draw's number within a sample: forward and position, so that neither the batch nor other lengths move it.
_POSITIONS = 1 << 20


@dataclass(frozen=True)
class Places:
    """M positions that ask for numbers; every field is [M] int64.

    Attributes:
        row: row of the call.
        sample: sample id.
        forward: denoising forward of that row, from 0.
        offset: position within the response, from 0.
    """

    row: Tensor
    sample: Tensor
    forward: Tensor
    offset: Tensor

    def __getitem__(self, index: slice) -> Places:
        return Places(self.row[index], self.sample[index], self.forward[index], self.offset[index])


class Draws(Protocol):
    """Where a denoising loop's uniform numbers in (0, 1) come from."""

    def token(self, places: Places) -> Tensor:
        """[M] float64 for drawing tokens by the cumulative distribution."""
        ...

    def gumbel(self, places: Places, vocab_size: int) -> Tensor:
        """[M,V] float64 for drawing tokens by Gumbel noise."""
        ...

    def selection(self, places: Places) -> Tensor:
        """[M] float64 for random selection."""
        ...

    def start(self, places: Places) -> Tensor:
        """[M] float64 for the random tokens that a block of uniform noise starts as."""
        ...

    def renewed(self, places: Places) -> Tensor:
        """[M] float64 for the random tokens of positions that a forward did not accept."""
        ...


@dataclass(frozen=True)
class AddressedDraws:
    """Numbers addressed by (seed, purpose, step, sample id, forward, position)."""

    address: Address

    def token(self, places: Places) -> Tensor:
        """See :class:`Draws`."""
        return self._at("token", places, 1)[:, 0]

    def gumbel(self, places: Places, vocab_size: int) -> Tensor:
        """See :class:`Draws`."""
        return self._at("gumbel", places, vocab_size)

    def selection(self, places: Places) -> Tensor:
        """See :class:`Draws`."""
        return self._at("selection", places, 1)[:, 0]

    def start(self, places: Places) -> Tensor:
        """See :class:`Draws`."""
        return self._at("start", places, 1)[:, 0]

    def renewed(self, places: Places) -> Tensor:
        """See :class:`Draws`."""
        return self._at("renewed", places, 1)[:, 0]

    def _at(self, part: str, places: Places, width: int) -> Tensor:
        draw = places.forward * _POSITIONS + places.offset
        return uniforms(self.address.within(part), places.sample, draw, width)
