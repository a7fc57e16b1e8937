"""Measures decoders on this machine: the same prompts, the same seed, one after the other."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from dare_core.interfaces import ModelAdapter, RolloutBackend, RolloutRequest
from dare_core.types import Rollout

_PEAK_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One decoder.

    Attributes:
        exactness: ``exact`` or ``approximate``.
        seconds: of the measured run; the warm-up run before it does not count.
        tokens: committed, over all rows.
        tokens_per_second: tokens over seconds.
        forwards: denoising forwards, over all rows.
        tokens_per_forward: tokens over forwards.
        matmul_share: multiplications per second, as a share of what one large matrix product reaches here.
        peak_memory_bytes: most memory in use during the measured run, weights included.
        agreement: share of response tokens equal to the reference decoder's.
    """

    exactness: str
    seconds: float
    tokens: int
    tokens_per_second: float
    forwards: int
    tokens_per_forward: float
    matmul_share: float
    peak_memory_bytes: int
    agreement: float


def measure(
    backends: Sequence[RolloutBackend], requests: Sequence[RolloutRequest], reference: Rollout
) -> Iterator[Measurement]:
    """One measurement per backend, each of its own request.

    Args:
        backends: of one model.
        requests: the same prompts, with each backend's protocol.
        reference: what the reference decoder gives for them.
    """
    adapter = backends[0].adapter
    rate = matmul_rate(adapter)
    for backend, request in zip(backends, requests, strict=True):
        counter = FlopCounterMode(display=False)
        with counter:
            backend.generate(request)
        with _peak(adapter) as peak:
            start = time.perf_counter()
            rollout = backend.generate(request)
            seconds = time.perf_counter() - start
        tokens = int(rollout.response.sum())
        forwards = int(rollout.forwards.sum())
        yield Measurement(
            exactness=backend.exactness,
            seconds=seconds,
            tokens=tokens,
            tokens_per_second=tokens / seconds,
            forwards=forwards,
            tokens_per_forward=tokens / max(1, forwards),
            matmul_share=counter.get_total_flops() / seconds / rate,
            peak_memory_bytes=peak[0],
            agreement=agreement(rollout, reference),
        )


def agreement(rollout: Rollout, reference: Rollout) -> float:
    """Share of response tokens that are equal, over the longer response of each row."""
    width = min(rollout.tokens.shape[1], reference.tokens.shape[1])
    both = rollout.response[:, :width] & reference.response[:, :width]
    equal = (rollout.tokens[:, :width] == reference.tokens[:, :width]) & both
    longer = torch.maximum(rollout.response.sum(dim=1), reference.response.sum(dim=1))
    return float(equal.sum() / longer.sum().clamp(min=1))


def matmul_rate(adapter: ModelAdapter) -> float:
    """Multiplications and additions per second of a large matrix product in the model's dtype; best of five."""
    weight = next(adapter.module.parameters())
    size = 1024 if weight.device.type == "cpu" else 8192
    left = torch.ones(size, size, dtype=weight.dtype, device=weight.device)
    best = float("inf")
    for _ in range(5):
        _wait(weight.device)
        start = time.perf_counter()
        torch.mm(left, left)
        _wait(weight.device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _peak(adapter: ModelAdapter) -> Iterator[list[int]]:
    """Bytes at the highest point while open, as the one element of what is yielded. Where the system does not let the
    process's mark be lowered, it is that of the process so far."""
    device, found = next(adapter.module.parameters()).device, [0]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield found
        found[0] = torch.cuda.max_memory_allocated(device)
        return
    try:
        _PEAK_RESET.write_text("5", encoding="ascii")
    except OSError:
        yield found
        found[0] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return
    yield found
    lines = dict(line.split(":", 1) for line in _STATUS.read_text(encoding="ascii").splitlines())
    found[0] = int(lines["VmHWM"].split()[0]) * 1024
