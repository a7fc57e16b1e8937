"""One step's metrics: weighted sums from parts of a batch become numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from dare_core.types.estimate import Metric


class MetricLog:
    """Gathers the metrics of one step.

    :meth:`add` takes weighted sums, so that parts of a batch (micro-batches, inner updates) add up to the
    metric of the whole; :meth:`put` takes numbers that are known once per step.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Metric] = {}
        self._numbers: dict[str, float] = {}

    def add(self, metrics: Mapping[str, Metric], prefix: str = "") -> None:
        """Add weighted sums under ``prefix + name``."""
        for name, metric in metrics.items():
            key = prefix + name
            self._refuse_both_ways(key, self._numbers)
            self._sums[key] = self._sums[key] + metric if key in self._sums else metric

    def put(self, numbers: Mapping[str, float], prefix: str = "") -> None:
        """Set numbers under ``prefix + name``; the last one stays."""
        for name, number in numbers.items():
            self._refuse_both_ways(prefix + name, self._sums)
            self._numbers[prefix + name] = float(number)

    def values(self) -> dict[str, float]:
        """Name -> number, sorted by name. A sum without weight is NaN."""
        merged = {name: metric.value for name, metric in self._sums.items()} | self._numbers
        return dict(sorted(merged.items()))

    @staticmethod
    def _refuse_both_ways(name: str, other: Mapping[str, object]) -> None:
        if name in other:
            raise ValueError(f"metric {name!r} is given both as a weighted sum and as a number")


def metrics_line(step: int, metrics: Mapping[str, float]) -> str:
    """A line of metrics.jsonl: strict JSON, ``step`` first, numbers that are not finite written as null."""
    row: dict[str, float | int | None] = {"step": step}
    for name, value in metrics.items():
        row[name] = value if math.isfinite(value) else None
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
