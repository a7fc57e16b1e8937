"""What a run really spent, so that comparisons can be made at equal compute and not only at equal steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Phase = Literal["rollout", "reward", "score", "update", "eval"]
PHASES: tuple[str, ...] = get_args(Phase)


@dataclass(kw_only=True)
class Ledger:
    """Counters of a run. They add up over steps and over resumes.

    Attributes:
        forwards: model evaluations, counted per row or view, so that batching does not change the number.
        forward_tokens: tokens that went through forwards, decoding included.
        backward_tokens: tokens that went through backwards.
        generated_tokens: response tokens kept after decoding, up to the first end token.
        seconds: wall-clock seconds by phase: rollout, reward, score, update, eval.
        peak_memory: most bytes in use at one time; adding ledgers keeps the larger one.
    """

    forwards: int = 0
    forward_tokens: int = 0
    backward_tokens: int = 0
    generated_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    peak_memory: int = 0

    def count(
        self,
        *,
        forwards: int = 0,
        forward_tokens: int = 0,
        backward_tokens: int = 0,
        generated_tokens: int = 0,
        peak_memory: int = 0,
    ) -> None:
        """Add to the counters; ``peak_memory`` is a level in bytes, of which the highest stays."""
        self.forwards += forwards
        self.forward_tokens += forward_tokens
        self.backward_tokens += backward_tokens
        self.generated_tokens += generated_tokens
        self.peak_memory = max(self.peak_memory, peak_memory)

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Add the seconds spent inside to ``phase``, also when an exception passes through."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - begin

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger(
            forwards=self.forwards + other.forwards,
            forward_tokens=self.forward_tokens + other.forward_tokens,
            backward_tokens=self.backward_tokens + other.backward_tokens,
            generated_tokens=self.generated_tokens + other.generated_tokens,
            seconds={phase: self.seconds[phase] + other.seconds[phase] for phase in PHASES},
            peak_memory=max(self.peak_memory, other.peak_memory),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for ledger.json."""
        return {
            "forwards": self.forwards,
            "forward_tokens": self.forward_tokens,
            "backward_tokens": self.backward_tokens,
            "generated_tokens": self.generated_tokens,
            "seconds": dict(self.seconds),
            "peak_memory_bytes": self.peak_memory,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Ledger:
        """The ledger that :meth:`to_json` wrote.

        Raises:
            KeyError: a counter is missing.
        """
        return cls(
            forwards=int(value["forwards"]),
            forward_tokens=int(value["forward_tokens"]),
            backward_tokens=int(value["backward_tokens"]),
            generated_tokens=int(value["generated_tokens"]),
            seconds={phase: float(value["seconds"][phase]) for phase in PHASES},
            peak_memory=int(value["peak_memory_bytes"]),
        )
