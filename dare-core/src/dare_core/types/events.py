"""What observers are told. Observers see; they never change a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run begins (``resumed_from`` None) or resumes at a step."""

    folder: Path
    manifest: Mapping[str, Any]
    resumed_from: int | None = None


@dataclass(frozen=True, slots=True)
class StepFinished:
    """Metrics of one step, as written to metrics.jsonl."""

    folder: Path
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A complete checkpoint folder."""

    folder: Path
    checkpoint: Path
    step: int


@dataclass(frozen=True, slots=True)
class RunFinished:
    """How a run ended."""

    folder: Path
    status: Literal["finished", "interrupted", "failed"]
    step: int
    message: str = ""
