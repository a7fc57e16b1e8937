"""Rollout backends: prompts -> sampled responses with their record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dare_core.types import Address, DecodingSettings, Prompt, Rollout, TreeShape, Watch

if TYPE_CHECKING:
    from torch import Tensor

    from dare_core.interfaces.model import ModelAdapter
    from dare_core.spec.sections import RolloutSection


@dataclass(frozen=True, kw_only=True)
class LogitMixture:
    """Sample from ``(1 - share) x logits + share x logits of another policy``.

    Attributes:
        share: of the other policy, in (0, 1].
        other: while the context it opens is open, the backend's adapter is the other policy.
    """

    share: float
    other: Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class RolloutRequest:
    """What to generate.

    Attributes:
        prompts: questions; sample ``g`` of prompt ``p`` gets sample id ``p.index * samples + g``.
        samples: responses per prompt (G).
        settings: decoding protocol.
        address: seed and step of the sampling draws.
        snapshots: record inputs, guesses and confidences of every denoising forward.
        tree: how responses of a prompt branch off each other; ``samples`` is then its number of leaves, and the
            snapshots are its segments. Given only to backends that provide ``tree``.
        policy_version: recorded with the rollout.
        mixture: another policy to mix in. Given only to backends that provide ``mixture``.
        watch: called after every denoising forward, by backends that run the loop here; others never call it.
    """

    prompts: Sequence[Prompt]
    samples: int
    settings: DecodingSettings
    address: Address
    snapshots: bool = False
    tree: TreeShape | None = None
    policy_version: int = 0
    mixture: LogitMixture | None = None
    watch: Watch | None = None


class RolloutBackend(ABC):
    """Generates with one model. Built as ``Backend(config, adapter)``; ``native`` shares the live adapter."""

    #: ``exact`` = tokens of the reference decoder; ``approximate`` = stale caches or other shortcuts
    exactness: str = "exact"

    def __init__(self, config: RolloutSection, adapter: ModelAdapter) -> None:
        self.config = config
        self.adapter = adapter

    @abstractmethod
    def generate(self, request: RolloutRequest) -> Rollout:
        """Sampled rows in the order of prompts, then samples. A row equals the row generated alone.

        Raises:
            UserError: a prompt does not fit the model with the asked new tokens (names it).
        """

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take over new weights. Backends that share the live module have nothing to do."""

    def close(self) -> None:
        """Free processes and memory."""
