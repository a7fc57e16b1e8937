"""Which installed distributions have plugins, read from their metadata without importing them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions

from packaging.utils import canonicalize_name

from dare_core.hookspecs import ENTRY_POINT_GROUP
from dare_core.official import is_official
from dare_core.plugins.report import one_line

DISABLE_VARIABLE = "DARE_DISABLE_PLUGINS"
THIRD_PARTY_VARIABLE = "DARE_NO_THIRD_PARTY"
_GROUP = re.compile(r"dare\.v\d+")
_OFF = ("", "0", "false", "no")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A distribution that declares plugins.

    Attributes:
        name: canonical name.
        version: version, or ``unknown`` if its metadata lacks one.
        requires: its ``Requires-Dist`` lines.
        entry_points: those of any ``dare.vN`` group, sorted.
        defect: why its metadata cannot be read, or empty.
    """

    name: str
    version: str
    requires: tuple[str, ...]
    entry_points: tuple[EntryPoint, ...]
    defect: str = ""

    @property
    def groups(self) -> tuple[str, ...]:
        """Plugin API groups it declares, sorted."""
        return tuple(sorted({point.group for point in self.entry_points}))

    @property
    def current(self) -> tuple[EntryPoint, ...]:
        """Entry points of this core's plugin API."""
        return tuple(point for point in self.entry_points if point.group == ENTRY_POINT_GROUP)


@dataclass(frozen=True, kw_only=True)
class Switches:
    """Which plugins are switched off.

    Attributes:
        disabled: canonical distribution names.
        third_party: whether distributions that are not official may load.
    """

    disabled: frozenset[str] = frozenset()
    third_party: bool = True

    @classmethod
    def from_environment(cls) -> Switches:
        """``DARE_DISABLE_PLUGINS=dare-foo,dare-bar`` and ``DARE_NO_THIRD_PARTY=1``."""
        names = os.environ.get(DISABLE_VARIABLE, "").split(",")
        return cls(
            disabled=frozenset(canonicalize_name(name.strip()) for name in names if name.strip()),
            third_party=os.environ.get(THIRD_PARTY_VARIABLE, "").strip().lower() in _OFF,
        )

    def reason(self, distribution: str) -> str | None:
        """Why a distribution is switched off, or None if it may load."""
        if distribution in self.disabled:
            return f"switched off by {DISABLE_VARIABLE} or --disable-plugin"
        if not self.third_party and not is_official(distribution):
            return f"third-party plugins are switched off by {THIRD_PARTY_VARIABLE} or --no-third-party"
        return None


def installed_candidates() -> list[Candidate]:
    """Distributions with plugins on ``sys.path``, sorted by name; of copies of one name the first on the path."""
    found: dict[str, Candidate] = {}
    for distribution in distributions():
        try:
            text = distribution.read_text("entry_points.txt") or ""
        except (OSError, UnicodeDecodeError):  # whose plugins these are, if any, cannot be known
            continue
        if "dare.v" not in text:
            continue
        try:
            points = [point for point in distribution.entry_points if _GROUP.fullmatch(point.group)]
            candidate = _candidate(distribution, points) if points else None
        except Exception as error:
            candidate = _unreadable(distribution, error)
        if candidate:
            found.setdefault(candidate.name, candidate)
    return [found[name] for name in sorted(found)]


def _unreadable(distribution: Distribution, error: Exception) -> Candidate:
    """A candidate whose entry points or metadata are malformed."""
    try:
        name, version = distribution.name, distribution.version
    except Exception:
        name, version = "", ""
    return Candidate(
        name=canonicalize_name(name or "unnamed"),
        version=version or "unknown",
        requires=(),
        entry_points=(),
        defect=f"its metadata cannot be read: {one_line(error)}",
    )


def candidates_of(entry_points: Iterable[EntryPoint]) -> list[Candidate]:
    """Candidates from given entry points, each of which knows its distribution."""
    groups: dict[str, tuple[Distribution | None, list[EntryPoint]]] = {}
    for point in entry_points:
        name = canonicalize_name(point.dist.name) if point.dist else point.name
        groups.setdefault(name, (point.dist, []))[1].append(point)
    return [
        _candidate(distribution, points) if distribution else _orphan(name, points)
        for name, (distribution, points) in sorted(groups.items())
    ]


def _candidate(distribution: Distribution, points: Sequence[EntryPoint]) -> Candidate:
    metadata = distribution.metadata
    package = re.split(r"[.:]", points[0].value, maxsplit=1)[0]
    return Candidate(
        name=canonicalize_name(metadata["Name"] or package),
        version=metadata["Version"] or "unknown",
        requires=tuple(metadata.get_all("Requires-Dist") or ()),
        entry_points=_sorted(points),
    )


def _orphan(name: str, points: Sequence[EntryPoint]) -> Candidate:
    return Candidate(name=canonicalize_name(name), version="unknown", requires=(), entry_points=_sorted(points))


def _sorted(points: Sequence[EntryPoint]) -> tuple[EntryPoint, ...]:
    return tuple(sorted(points, key=lambda point: (point.group, point.name, point.value)))
