"""The KL term of the unified framework's BGPO, which only reproduces its recorded outputs: it is NaN below d = -1."""

from __future__ import annotations

import torch
from torch import Tensor


def linearised_difference(d: Tensor, advantage: Tensor) -> Tensor:
    """``log(1 + d)`` where A > 0, else ``d``; ``advantage`` is broadcastable to ``d``."""
    positive = (advantage > 0).expand_as(d)
    # The inner where keeps NaN of the unused branch out of the gradient.
    return torch.where(positive, torch.log1p(torch.where(positive, d, 0.0)), d)
