"""Rollouts that branch while they are denoised."""

from __future__ import annotations

from dataclasses import dataclass

from dare_core.types.decoding import DecodingSettings, EosRule


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How a rollout branches: the canvas of one prompt is decoded in stages of equal length, and at the start of each
    every canvas is continued several times.

    Attributes:
        root_branches: continuations of the fully masked canvas.
        branches: continuations of every later one.
        levels: stages; 1 = no branching but at the root.
    """

    root_branches: int
    branches: int
    levels: int

    def __post_init__(self) -> None:
        for name in ("root_branches", "branches", "levels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def leaves(self) -> int:
        """Finished responses per prompt."""
        return self.leaves_below(0) * self.root_branches

    def leaves_below(self, level: int) -> int:
        """Finished responses below each canvas that stage ``level`` (from 0) ends with."""
        return int(self.branches ** (self.levels - 1 - level))

    def branch_points(self, steps: int) -> list[int]:
        """Remaining steps, of ``steps`` in all, at which canvases branch, and 0.

        Raises:
            ValueError: the steps cannot be shared evenly.
        """
        if steps % self.levels:
            raise ValueError(f"{steps} steps cannot be shared by {self.levels} stages")
        return list(range(steps, -1, -(steps // self.levels)))

    def cuts(self, settings: DecodingSettings) -> list[int]:
        """Response offsets at which the stages begin, and the end.

        Raises:
            ValueError: the protocol cannot branch so: stages must hold whole blocks that are decoded to their end.
        """
        blocks, rest = divmod(settings.new_tokens, settings.block_length)
        if rest or blocks % self.levels:
            raise ValueError(
                f"{settings.new_tokens} new tokens in blocks of {settings.block_length} cannot be shared by "
                f"{self.levels} stages of whole blocks"
            )
        if settings.eos_rule in (EosRule.STOP, EosRule.STOP_EARLY):
            raise ValueError(f"branching rollouts decode every position; eos_rule '{settings.eos_rule}' stops early")
        if settings.guidance or settings.schedule != "even":
            raise ValueError("branching rollouts know neither guidance nor a schedule over the whole response")
        stage = settings.new_tokens // self.levels
        return [level * stage for level in range(self.levels + 1)]
