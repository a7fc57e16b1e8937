"""Per-token surrogates of KL(live || reference) from d = log live - log reference, at tokens of the live policy.

Schulman 2020, "Approximating KL divergence": k1 = d; k2 = d^2 / 2; k3 = exp(-d) + d - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

KlForm = Literal["k1", "k1-score", "abs", "k2", "k3", "k3-clamped"]

#: bounds of ``k3-clamped``
CLAMP = 10.0


def k1(d: Tensor) -> Tensor:
    """``d``: unbiased in value; its gradient is not that of the KL."""
    return d


def k1_score(d: Tensor) -> Tensor:
    """``d``, with gradient ``1 + d``: that of the KL's own score-function estimate, E[(1 + d) grad log live]."""
    return d + d.detach() * (d - d.detach())


def absolute(d: Tensor) -> Tensor:
    """``|d|``."""
    return d.abs()


def k2(d: Tensor) -> Tensor:
    """``d^2 / 2``."""
    return d * d / 2


def k3(d: Tensor, limit: float | None = None) -> Tensor:
    """``exp(-d) + d - 1``, never negative; clamped to [-limit, limit] if given (beyond it the gradient is 0)."""
    value = torch.expm1(-d) + d
    return value if limit is None else value.clamp(-limit, limit)


KL_FORMS: Mapping[KlForm, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"k1": k1, "k1-score": k1_score, "abs": absolute, "k2": k2, "k3": k3, "k3-clamped": lambda d: k3(d, CLAMP)}
)
