"""How a loop ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: ``finished`` (a stop rule included) or ``interrupted``.
        step: training steps done.
        folder: the run's folder.
        message: why it ended before its planned steps, and how to go on; else empty.
        exit_code: what a command returns: 0, or 128 plus the signal's number.
    """

    status: Literal["finished", "interrupted"]
    step: int
    folder: Path
    message: str = ""
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        return {"status": self.status, "step": self.step, "folder": str(self.folder), "message": self.message}
