"""Which runs there are, their specs and their folders."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
#: where the specs look for rows and starts
RUNS = Path("runs/learning")
TASKS = ("sudoku", "countdown")
PAIRED = ("dpo", "vrpo")
REWARDED = (
    "d1",
    "coupled-grpo",
    "cj-grpo",
    "tracerl",
    "mdpo",
    "d-treerpo",
    "justgrpo",
    "wd1",
    "bgpo",
    "espo",
    "ebpo",
    "spg",
)
ALGORITHMS = ("sft", *PAIRED, *REWARDED)


@dataclass(frozen=True)
class Run:
    """One run: its task, algorithm and seed, and values set on top of its specs."""

    task: str
    algorithm: str
    seed: int
    changes: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where it is kept; runs with changes have a folder of their own."""
        told = "".join(f"-{re.sub('[^A-Za-z0-9.-]', '_', change)}" for change in self.changes)
        return RUNS / f"{self.task}-{self.algorithm}-seed{self.seed}{told}"

    @property
    def specs(self) -> list[Path]:
        """The spec and its overlays."""
        if self.algorithm == "sft":
            return [HERE / f"{self.task}-sft.yaml"]
        base = HERE / f"{self.task}-{'pairs' if self.algorithm in PAIRED else 'rl'}.yaml"
        overlays = (HERE / "algorithms" / f"{name}.yaml" for name in (self.algorithm, f"{self.task}-{self.algorithm}"))
        return [base, *(path for path in overlays if path.exists())]

    @property
    def arguments(self) -> list[str]:
        """What follows ``dare run`` or ``dare validate``."""
        spec, *overlays = map(str, self.specs)
        changes = (f"run.name={self.folder.name}", f"run.folder={RUNS}", f"run.seed={self.seed}", *self.changes)
        return [
            spec,
            *(word for overlay in overlays for word in ("-f", overlay)),
            *(word for change in changes for word in ("--set", change)),
        ]

    @property
    def status(self) -> str | None:
        """As the run's folder says; None before it began."""
        state = self.folder / "state.json"
        return json.loads(state.read_text())["status"] if state.exists() else None
