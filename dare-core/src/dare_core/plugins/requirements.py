"""What a plugin requires of its surroundings: the dare-core release, and optional imports."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from dare_core.plugins.report import MissingImport, PluginStatus, Rejected

#: import name -> distribution, where they differ by more than hyphens
_DISTRIBUTIONS = {"yaml": "pyyaml", "PIL": "pillow", "sklearn": "scikit-learn", "cv2": "opencv-python"}


def check_core_bounds(requires: Iterable[str], core_version: str) -> None:
    """Compare ``Requires-Dist: dare-core ...`` with the dare-core that is running.

    Raises:
        Rejected: a bound excludes this release, or a requirement cannot be read.
    """
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            reason = f"its metadata holds an unreadable requirement {line!r}"
            raise Rejected(PluginStatus.INVALID, reason) from error
        if canonicalize_name(requirement.name) != "dare-core":
            continue
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.specifier.contains(core_version, prereleases=True):
            needed = f"dare-core{requirement.specifier}"
            raise Rejected(PluginStatus.INCOMPATIBLE, f"needs {needed}, but dare-core {core_version} is installed")


def missing_imports(names: Iterable[str], distribution: str, requires: Iterable[str]) -> tuple[MissingImport, ...]:
    """The import names that cannot be found, each with the command that installs it. Imports nothing."""
    return tuple(
        MissingImport(name=name, install=_install_command(name, distribution, requires))
        for name in names
        if not _findable(name, tuple(sys.path))
    )


@cache
def _findable(name: str, search_path: tuple[str, ...]) -> bool:
    """Whether an import name exists. Parents of dotted names are searched, not imported."""
    head, *rest = name.split(".")
    try:
        spec = find_spec(head)
    except ValueError:  # the module is loaded but has no spec
        return True
    full = head
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return False
        full = f"{full}.{part}"
        spec = PathFinder.find_spec(full, list(spec.submodule_search_locations))
    return spec is not None


def _install_command(name: str, distribution: str, requires: Iterable[str]) -> str:
    """The plugin's own extra if one brings the package, else the package itself."""
    head = name.partition(".")[0]
    package = canonicalize_name(_DISTRIBUTIONS.get(head, head))
    for line in requires:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) != package or requirement.marker is None:
            continue
        for extra in _extras(str(requirement.marker)):
            return f"pip install '{distribution}[{extra}]'"
    return f"pip install {package}"


def _extras(marker: str) -> list[str]:
    """Extra names in a marker such as ``extra == "data"``."""
    parts = marker.replace("'", '"').split("extra ==")
    return [part.split('"')[1] for part in parts[1:] if part.count('"') >= 2]
