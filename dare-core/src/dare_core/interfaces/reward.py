"""Rewards and verifiers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dare_core.types import Prompt, Verdict

if TYPE_CHECKING:
    from dare_core.api import SectionConfig


class Reward(ABC):
    """Judges responses. Built as ``Reward(config)``. The same object serves training and evaluation.

    A reward never raises on model-written text: a failure of its own is a verdict with status ``error``.
    """

    def __init__(self, config: SectionConfig) -> None:
        self.config = config

    @abstractmethod
    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Verdict]:
        """One verdict per (prompt, response), in order. Same verdict from any thread, in bounded time."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Look at all prompts before training.

        Raises:
            UserError: prompts lack what the reward reads (reference answer, meta fields); names them.
        """

    def close(self) -> None:
        """Free worker processes."""
