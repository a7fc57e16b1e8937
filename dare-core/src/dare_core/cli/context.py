"""What commands share: the catalogue as the global flags ask for it, and JSON output."""

from __future__ import annotations

import json
import logging
import sys
from functools import cache
from typing import Any

from dare_core.catalog import Catalog, Switches


def catalog() -> Catalog:
    """The catalogue of installed plugins, loaded once; honours ``--disable-plugin`` and ``--no-third-party``."""
    return _load(Switches.from_environment(), tuple(sys.path))


@cache
def _load(switches: Switches, search_path: tuple[str, ...]) -> Catalog:
    loaded = Catalog.load(switches=switches)
    names = {report.distribution for report in loaded.reports}
    for name in sorted(switches.disabled):
        if name == "dare-core":
            logging.getLogger("dare").warning("dare-core cannot be switched off")
        elif name not in names:
            logging.getLogger("dare").warning("no installed plugin is called %s; nothing to switch off", name)
    return loaded


def emit(data: Any) -> None:
    """Write machine-readable output: one JSON document on stdout."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
