"""Installs pretend distributions by writing their files: to test how plugins load, without pip."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dare_core.hookspecs import ENTRY_POINT_GROUP


@dataclass(frozen=True, kw_only=True)
class FakeDistribution:
    """A distribution ``dare-foo`` with a package ``dare_foo`` whose module ``plugin`` declares components.

    Attributes:
        name: distribution name.
        source: source of ``<package>/plugin.py``; None writes no module at all (stale metadata).
        version: version in the metadata.
        entry_points: entry-point name -> value; default: one that names the plugin module.
        group: entry-point group.
        requires: ``Requires-Dist`` lines.
        files: further files of the package, relative path -> content.
    """

    name: str
    source: str | None = ""
    version: str = "1.0"
    entry_points: Mapping[str, str] | None = None
    group: str = ENTRY_POINT_GROUP
    requires: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """Import name."""
        return self.name.replace("-", "_")

    def write(self, folder: Path) -> None:
        """Write metadata and package below ``folder``, as pip would below site-packages."""
        metadata = folder / f"{self.package}-{self.version}.dist-info"
        metadata.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {self.name}", f"Version: {self.version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in self.requires]
        (metadata / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        points = self.entry_points or {self.name.removeprefix("dare-"): f"{self.package}.plugin"}
        listed = [f"{name} = {value}" for name, value in points.items()]
        (metadata / "entry_points.txt").write_text("\n".join([f"[{self.group}]", *listed]) + "\n", encoding="utf-8")
        files = dict(self.files)
        if self.source is not None:
            files.setdefault("__init__.py", "")
            files["plugin.py"] = self.source
        for name, content in files.items():
            path = folder / self.package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")


@contextlib.contextmanager
def installed(folder: Path, *distributions: FakeDistribution) -> Iterator[Path]:
    """Write distributions below ``folder`` and make them importable in this process while the context is open.

    Subprocesses see them when ``folder`` is on their ``PYTHONPATH``.
    """
    for distribution in distributions:
        distribution.write(folder)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
        importlib.invalidate_caches()
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]
