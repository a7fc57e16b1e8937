"""What a person sees of a run: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

#: metrics worth a glance, in this order, where they exist
SHOWN = ("loss", "reward/mean", "rollout/unique_share", "rollout/response_length", "optim/grad_norm", "eval/reward")


class Report(Protocol):
    """Shows how far a run is."""

    def start(self, step: int, total: int) -> None: ...  # noqa: D102

    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...  # noqa: D102

    def say(self, text: str) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


def report_for(stream: TextIO | None = None) -> Report:
    """The report that fits the stream; default: standard error."""
    stream = stream or sys.stderr
    return BarReport() if stream.isatty() else LineReport(stream)


def glance(metrics: Mapping[str, float]) -> str:
    """The metrics of :data:`SHOWN` on one line."""
    parts = [f"{name} {metrics[name]:.4g}" for name in SHOWN if math.isfinite(metrics.get(name, math.nan))]
    return "  ".join(parts)


class LineReport:
    """One line per step, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total = 0
        self._since = time.perf_counter()

    def start(self, step: int, total: int) -> None:
        """Remember the plan."""
        self._total, self._since = total, time.perf_counter()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line."""
        now = time.perf_counter()
        self.say(f"step {step}/{self._total}  {glance(metrics)}  {now - self._since:.2f} s")
        self._since = now

    def say(self, text: str) -> None:
        """Write a line."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing to do."""


class BarReport:
    """A progress bar with the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task("", total=None)

    def start(self, step: int, total: int) -> None:
        """Show the bar."""
        self._bar.update(self._task, completed=step, total=total)
        self._bar.start()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=step, description=glance(metrics))

    def say(self, text: str) -> None:
        """Write a line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.stop()
