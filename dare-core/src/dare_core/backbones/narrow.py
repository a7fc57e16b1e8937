"""Matrix products of few rows on a processor, as decoders with caches ask for them.

With 32 rows x, (W x^T)^T runs at about 1.4 times the rate of x W^T, in float32: the library's product cuts its work
along the rows of its left factor. From 64 rows on it is slower (docs/performance.md).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from torch import Tensor

#: rows up to which products are turned around
MOST_ROWS = 40
#: fewer are a matter of memory's rate, whichever way round
LEAST_ROWS = 8


class _Turned(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is linear and len(args) == 3 and args[2] is None and not kwargs:
            rows, weight = args[0], args[1]
            return torch.mm(weight, rows.flatten(0, -2).t()).t().contiguous().view(*rows.shape[:-1], len(weight))
        return func(*args, **(kwargs or {}))


def narrow_products(rows: Tensor, weight: Tensor) -> AbstractContextManager[Any]:
    """While open, linear maps without bias are computed the way that suits a forward of ``rows`` [T], without
    gradient, by weights like ``weight``."""
    suits = LEAST_ROWS <= len(rows) <= MOST_ROWS and weight.device.type == "cpu" and weight.dtype == torch.float32
    return _Turned() if suits and not torch.is_grad_enabled() else nullcontext()
