"""What evaluations record of the model and of the packages."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dare_core.interfaces import ModelAdapter


def described(adapter: ModelAdapter) -> dict[str, Any]:
    """The adapter's own description, its device by kind only: shards run on devices of their own."""
    facts = adapter.describe()
    if "device" in facts:
        facts["device"] = str(facts["device"]).partition(":")[0]
    return facts


def versions(names: Sequence[str]) -> dict[str, str]:
    """Package name -> version, of those that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
