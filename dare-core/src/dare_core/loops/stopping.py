"""Stop rules: nothing to learn any more, or collapse."""

from __future__ import annotations

from collections.abc import Mapping

from dare_core.spec.sections import RunSection

FLAT = "reward/zero_variance_share"


class StopRules:
    """Watches metrics of finished steps.

    Attributes:
        flat_steps: steps in a row in which no group had differing rewards.
    """

    def __init__(self, section: RunSection) -> None:
        self._section = section
        self.flat_steps = 0

    def reason(self, metrics: Mapping[str, float]) -> str | None:
        """Why the run is to stop after a step with these metrics, or None."""
        self.flat_steps = self.flat_steps + 1 if metrics.get(FLAT) == 1.0 else 0
        limit = self._section.stop_when_flat
        if limit is not None and self.flat_steps >= limit:
            return f"no group had differing rewards in the last {limit} steps (run.stop_when_flat)"
        for name, bound in self._section.stop_below.items():
            if name in metrics and metrics[name] < bound:
                return f"{name} fell to {metrics[name]:.4g}, below {bound:g} (run.stop_below)"
        return None
