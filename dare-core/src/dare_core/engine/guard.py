"""Finding what is not finite, and where it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dare_core.errors import NonFiniteError
from dare_core.types import Scores, Views


def check_scores(scores: Scores, views: Views, module: nn.Module, rescore: Callable[[], object]) -> None:
    """Raise unless all scores are finite.

    Args:
        scores: of ``views``.
        views: what was scored; their rows are named.
        module: searched for the parameter or the layer that is to blame.
        rescore: repeats the forward, watched layer by layer.

    Raises:
        NonFiniteError: names the score, the first parameter or module that is not finite, and the rows.
    """
    for name in ("logp", "entropy", "value"):
        tensor = getattr(scores, name)
        if tensor is not None and not _finite(tensor):
            rows = _rows_of(tensor, views)
            raise NonFiniteError(f"score '{name}' is not finite: {_culprit(module, rescore)}", rows)


def check_upstream(upstream: Scores, views: Views) -> None:
    """Raise unless the gradient of the loss with respect to every score is finite.

    Raises:
        NonFiniteError: names the score and the rows.
    """
    for name in ("logp", "entropy", "value"):
        tensor = getattr(upstream, name)
        if tensor is not None and not _finite(tensor):
            rows = _rows_of(tensor, views)
            raise NonFiniteError(f"the gradient of the loss with respect to score '{name}' is not finite", rows)


def nonfinite_names(named: Iterable[tuple[str, Tensor]], most: int = 3) -> list[str]:
    """Names of the first tensors that hold a NaN or an infinity, ``most`` at most."""
    found: list[str] = []
    for name, tensor in named:
        if tensor.is_floating_point() and not _finite(tensor):
            found.append(name)
            if len(found) == most:
                break
    return found


def _rows_of(tensor: Tensor, views: Views) -> list[int]:
    return sorted(set(views.row[~torch.isfinite(tensor).all(dim=1)].tolist()))


def _finite(tensor: Tensor) -> bool:
    # One pass over memory: a sum is finite only if all its terms are. Where it is not, it may just be too large.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _culprit(module: nn.Module, rescore: Callable[[], object]) -> str:
    weights = nonfinite_names([*module.named_parameters(), *module.named_buffers()])
    if weights:
        return f"weight {', '.join(map(repr, weights))} holds NaN or infinity"
    layer = _first_nonfinite_module(module, rescore)
    if layer is not None:
        return f"all weights are finite; module '{layer}' is the first whose output is not"
    return "all weights and module outputs are finite, so it arose after the last module"


def _first_nonfinite_module(module: nn.Module, rescore: Callable[[], object]) -> str | None:
    found: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            tensors = [output] if isinstance(output, Tensor) else list(output) if isinstance(output, tuple) else []
            if not found and nonfinite_names((name, t) for t in tensors if isinstance(t, Tensor)):
                found.append(name)

        return hook

    handles = [part.register_forward_hook(watch(name)) for name, part in module.named_modules() if name]
    try:
        with torch.no_grad():
            rescore()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None
