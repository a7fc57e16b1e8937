"""Shape and range checks for the records of this room, written so that torch need not be imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def expect_shape(owner: str, name: str, tensor: Tensor, shape: Sequence[int], axes: str) -> None:
    """Raise ValueError unless ``tensor`` has ``shape``. ``axes`` names them in the message, e.g. ``[B,L]``."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{owner}.{name} has shape {tuple(tensor.shape)}; expected {axes} = {tuple(shape)}")


def expect_dtype(owner: str, name: str, tensor: Tensor, wanted: str) -> None:
    """Raise ValueError unless ``tensor`` is ``bool``, ``int64`` or (``wanted='float'``) floating point."""
    matches = tensor.is_floating_point() if wanted == "float" else str(tensor.dtype) == f"torch.{wanted}"
    if not matches:
        raise ValueError(f"{owner}.{name} has dtype {tensor.dtype}; expected {wanted}")
