"""Golden cases: stored inputs with the right answers. Form: one folder with case.json and its tensors or rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GoldenCase:
    """One case. ``spec`` is the parsed case.json."""

    folder: Path
    spec: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Unique within the group; the folder's name where the case does not say."""
        return str(self.spec.get("id", self.folder.name))

    @property
    def group(self) -> str:
        """For example ``models/llada``."""
        return str(self.spec.get("group", ""))

    @property
    def kind(self) -> str:
        """What is computed: ``logits``, ``loss``, ..."""
        return str(self.spec.get("kind", ""))

    @property
    def topic(self) -> str:
        """One line about the case."""
        return str(self.spec.get("topic", ""))

    @property
    def needed_by(self) -> str:
        """The part of the project that first needs it."""
        return str(self.spec.get("needed_by", ""))

    @property
    def settings(self) -> Mapping[str, Any]:
        """Parameters under their published names."""
        return dict(self.spec.get("settings", {}))

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every stored tensor by name."""
        from safetensors.torch import load_file

        return load_file(self.folder / "tensors.safetensors")

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of a case of form ``rows``."""
        return list(json.loads((self.folder / "cases.json").read_text(encoding="utf-8")))

    def names(self, role: str) -> list[str]:
        """Tensor names of a role (``input`` or ``expected``)."""
        return [name for name, entry in self.spec["tensors"].items() if entry["role"] == role]

    def close(self, name: str, got: Tensor, where: Tensor | None = None) -> None:
        """Assert that ``got`` matches the stored tensor ``name`` under the case's own tolerance.

        Args:
            name: stored tensor.
            got: same shape; exact where the case says so, else abs(got - want) <= atol + rtol * abs(want)
                with equal NaN and infinities.
            where: bool, broadcastable: positions to compare.
        """
        import torch

        want = self.tensors[name]
        assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
        if where is not None:
            chosen = where.expand(want.shape)
            got, want = got[chosen], want[chosen]
        tolerance = self.spec["tolerance"]
        if name in tolerance["exact"]:
            differing = int((got != want).sum())
            assert differing == 0, f"{name}: {differing} of {want.numel()} entries differ"
            return
        torch.testing.assert_close(
            got.to(torch.float64),
            want.to(torch.float64),
            rtol=tolerance["rtol"],
            atol=tolerance["atol"],
            equal_nan=True,
            msg=lambda text: f"{name}: {text}",
        )


def find_cases(root: Path) -> Iterator[GoldenCase]:
    """Every folder below ``root`` that holds a case.json, in sorted order."""
    for path in sorted(root.rglob("case.json")):
        yield GoldenCase(path.parent, json.loads(path.read_text(encoding="utf-8")))
