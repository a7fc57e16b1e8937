"""Addresses of random draws."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Address:
    """Names a family of random draws: never a rank, micro-batch, call order or global generator.

    The full address of one draw is (seed, purpose, step, sample id, draw): the last two are given where
    the numbers are drawn (:mod:`dare_core.diffusion.seeds`), since they vary within a batch.

    Attributes:
        seed: the run's seed.
        purpose: what the draw is for, e.g. ``"corruption"``; different purposes never share numbers.
        step: training step, from 0; -1 outside training.
    """

    seed: int
    purpose: str
    step: int = -1

    def for_purpose(self, purpose: str) -> Address:
        """The same seed and step, for another purpose."""
        return replace(self, purpose=purpose)

    def within(self, part: str) -> Address:
        """A purpose inside this one, e.g. the second inner update of a corruption."""
        return replace(self, purpose=f"{self.purpose}/{part}")
