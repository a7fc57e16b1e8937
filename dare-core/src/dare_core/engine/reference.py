"""The policy that a run started from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from torch import Tensor, nn

from dare_core.interfaces.model import ModelAdapter
from dare_core.spec.sections import PeftSection


class ReferencePolicy(Protocol):
    """Turns the live model into the reference model while the context is open."""

    def active(self) -> AbstractContextManager[None]: ...  # noqa: D102


class AdaptersOff:
    """The base model below fresh adapters, which start as the identity."""

    def __init__(self, adapter: ModelAdapter) -> None:
        self._adapter = adapter

    def active(self) -> AbstractContextManager[None]:
        """While open, adapters are switched off."""
        return self._adapter.base_only()


class FrozenWeights:
    """A copy of the trainable weights as they were at the start, on the same device.

    Storage is exchanged instead of copied, so switching costs nothing and any adapter works with it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._pairs: list[tuple[nn.Parameter, Tensor]] = [
            (parameter, parameter.detach().clone()) for parameter in module.parameters() if parameter.requires_grad
        ]

    @contextmanager
    def active(self) -> Iterator[None]:
        """While open, the module holds the frozen weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for index, (parameter, other) in enumerate(self._pairs):
            self._pairs[index] = (parameter, parameter.data)
            parameter.data = other


def reference_policy(adapter: ModelAdapter, peft: PeftSection | None) -> ReferencePolicy:
    """The reference of a run that starts at the adapter's present weights.

    Adapters that continue from a trained one do not start as the identity, so their weights are kept too.
    """
    if peft is not None and peft.adapter is None:
        return AdaptersOff(adapter)
    return FrozenWeights(adapter.module)
