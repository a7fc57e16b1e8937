"""The policy that the live one is compared with: where the run started, or where it stood at the last move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from dare_core.interfaces.model import ModelAdapter
from dare_core.spec.sections import PeftSection


class ReferencePolicy(Protocol):
    """Turns the live model into the reference model while the context is open."""

    def active(self) -> AbstractContextManager[None]: ...  # noqa: D102

    def follow(self, mix: float) -> None: ...  # noqa: D102

    def tensors(self) -> dict[str, Tensor]: ...  # noqa: D102

    def restore(self, tensors: Mapping[str, Tensor]) -> None: ...  # noqa: D102


class AdaptersOff:
    """The base model below fresh adapters, which start as the identity."""

    def __init__(self, adapter: ModelAdapter) -> None:
        self._adapter = adapter

    def active(self) -> AbstractContextManager[None]:
        """While open, adapters are switched off."""
        return self._adapter.base_only()

    def follow(self, mix: float) -> None:
        """The base cannot move.

        Raises:
            TypeError: always.
        """
        raise TypeError("a reference policy that moves needs weights of its own")

    def tensors(self) -> dict[str, Tensor]:
        """Nothing: the base is the published model."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Nothing to do."""


class FrozenWeights:
    """A copy of the trainable weights, on the same device.

    Storage is exchanged instead of copied, so switching costs nothing and any adapter works with it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._kept = {name: p.detach().clone() for name, p in self._parameters.items()}

    @contextmanager
    def active(self) -> Iterator[None]:
        """While open, the module holds the frozen weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for name, parameter in self._parameters.items():
            kept, self._kept[name] = self._kept[name], parameter.data
            parameter.data = kept

    @torch.no_grad()
    def follow(self, mix: float) -> None:
        """Move to ``mix`` of the live weights and ``1 - mix`` of what was kept."""
        for name, parameter in self._parameters.items():
            if mix == 1.0:
                self._kept[name].copy_(parameter)
            else:
                self._kept[name].lerp_(parameter.detach(), mix)

    def tensors(self) -> dict[str, Tensor]:
        """The kept weights by parameter, for saving."""
        return dict(self._kept)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave.

        Raises:
            ValueError: the names are not those of this model's trainable parameters.
        """
        if tensors.keys() != self._kept.keys():
            raise ValueError("saved and present parameters of the reference policy differ")
        for name, tensor in tensors.items():
            self._kept[name].copy_(tensor)


def reference_policy(adapter: ModelAdapter, peft: PeftSection | None, *, moves: bool = False) -> ReferencePolicy:
    """The reference of a run that starts at the adapter's present weights.

    Adapters that continue from a trained one do not start as the identity, so their weights are kept too; so are those
    of a reference that ``moves``.
    """
    if peft is not None and peft.adapter is None and not moves:
        return AdaptersOff(adapter)
    return FrozenWeights(adapter.module)
