"""Counts what generation spends."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from dare_core.interfaces import RolloutBackend, RolloutRequest
from dare_core.run.ledger import Ledger
from dare_core.types import Rollout


class CountingBackend(RolloutBackend):
    """A backend whose generation is entered into the run's ledger, whoever asks for it.

    A row's forwards are taken to see all its positions: exact for masked models without a cache, an upper count
    for block models and caches.
    """

    def __init__(self, backend: RolloutBackend, ledger: Ledger) -> None:
        super().__init__(backend.config, backend.adapter)
        self.exactness = backend.exactness
        self._backend = backend
        self._ledger = ledger

    def generate(self, request: RolloutRequest) -> Rollout:
        """See :meth:`RolloutBackend.generate`."""
        rollout = self._backend.generate(request)
        self._ledger.count(
            forwards=int(rollout.forwards.sum()),
            forward_tokens=int((rollout.forwards * rollout.valid.sum(dim=1)).sum()),
            generated_tokens=int(rollout.completion.sum()),
        )
        return rollout

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See :meth:`RolloutBackend.sync`."""
        self._backend.sync(weights, version)

    def close(self) -> None:
        """See :meth:`RolloutBackend.close`."""
        self._backend.close()
