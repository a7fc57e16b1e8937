"""Receivers of metrics beside the run folder's own metrics.jsonl."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dare_core.api import SectionConfig


class Tracker(ABC):
    """Built as ``Tracker(config, run_folder)``."""

    def __init__(self, config: SectionConfig, run_folder: Path) -> None:
        self.config = config
        self.run_folder = run_folder

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of one step."""

    def close(self) -> None:
        """Flush and close."""
