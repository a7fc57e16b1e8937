"""Activation checkpointing of a family's repeated layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dare_core.errors import Problem, UserError


def checkpoint_activations(module: nn.Module, units: Sequence[str]) -> None:
    """Make every submodule whose class is named in ``units`` recompute its activations in the backward pass.

    Raises:
        UserError: the model holds none of these classes.
    """
    layers = [part for part in module.modules() if type(part).__name__ in units]
    if not layers:
        raise UserError(
            Problem(
                f"this model has no layer of class {' or '.join(units) or '(none named)'} to recompute",
                path="engine.activation_checkpointing",
                hint="set it to false",
            )
        )
    for layer in layers:
        layer.forward = _recomputed(layer, layer.forward)


def _recomputed(layer: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if layer.training and torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)

    return run
