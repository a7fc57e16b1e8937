"""manifest.json: what produced a run. Versions are read from package metadata; nothing heavy is imported.

No environment variable, user name or host name is recorded.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any, Protocol

from dare_core.spec.plan import RunPlan

FORMAT = 1
LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "safetensors",
    "tokenizers",
    "numpy",
    "pydantic",
    "pluggy",
    "pyarrow",
    "datasets",
    "math-verify",
)
_PROBES = 64
_PROBE_BYTES = 4096


class DistributionReport(Protocol):
    """What a manifest keeps of a plugin's load report."""

    @property
    def distribution(self) -> str:
        """Package name."""

    @property
    def version(self) -> str:
        """Package version."""

    @property
    def status(self) -> str:
        """How loading went."""

    @property
    def reason(self) -> str:
        """Why, if not well."""


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def installed_versions() -> dict[str, str]:
    """Package name -> version of the dare packages and of the libraries a result can depend on."""
    found = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name and name.lower().startswith("dare-"):
            found[name.lower()] = distribution.version
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return dict(sorted(found.items()))


def environment() -> dict[str, Any]:
    """Interpreter, platform, processor count and package versions."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "packages": installed_versions(),
    }


def build_manifest(
    plan: RunPlan, reports: Iterable[DistributionReport], arguments: Sequence[str] = ()
) -> dict[str, Any]:
    """The manifest of a run that begins.

    Args:
        plan: the resolved run.
        reports: one load report per plugin distribution.
        arguments: the command line, without the program's name.
    """
    return {
        "format": FORMAT,
        "created": now(),
        "arguments": list(arguments),
        "seed": plan.run.seed,
        **environment(),
        "plugins": _plugins(reports),
        "components": {
            slot.value: {"kind": choice.component.kind, "distribution": choice.distribution}
            for slot, choice in plan.choices.items()
        },
        "fingerprints": {},
        "resumes": [],
    }


def resume_entry(step: int, reports: Iterable[DistributionReport]) -> dict[str, Any]:
    """What a manifest adds when a run goes on from ``step``."""
    return {"time": now(), "step": step, **environment(), "plugins": _plugins(reports)}


def changed_versions(manifest: Mapping[str, Any]) -> list[str]:
    """What differs between the environment that began a run and this one, one line each, e.g. ``torch: 2.6.0, now
    2.7.1``; numbers may then differ from an uninterrupted run's."""
    current = environment()
    before = {"python": manifest["python"], "machine": manifest["machine"], **manifest["packages"]}
    after = {"python": current["python"], "machine": current["machine"], **current["packages"]}
    return [
        f"{name}: {before.get(name, 'absent')}, now {after.get(name, 'absent')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def model_fingerprint(folder: Path) -> str:
    """Hash of a model folder: all names and sizes, the content of small files, and evenly spread probes of large
    ones, so that 16 GB are not read twice. Training changes practically every page of weights, so probes see it.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder).as_posix()}\x1f{size}\x1f".encode())
        with path.open("rb") as file:
            if size <= _PROBES * _PROBE_BYTES:
                digest.update(file.read())
                continue
            for probe in range(_PROBES):
                file.seek((size - _PROBE_BYTES) * probe // (_PROBES - 1))
                digest.update(file.read(_PROBE_BYTES))
    return digest.hexdigest()


def _plugins(reports: Iterable[DistributionReport]) -> list[dict[str, str]]:
    return [
        {"distribution": r.distribution, "version": r.version, "status": str(r.status), "reason": r.reason}
        for r in reports
    ]
