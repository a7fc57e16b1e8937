"""The public surface as data: kinds, capability words, option fields and their defaults.

A changed default changes what old specs mean, so changes are made knowingly: after one, write the snapshot anew and
commit it with the reason.

    python -m tests.architecture.public_surface --write
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python
from tests.architecture.project import plugin_packages

from dare_core.api import SectionConfig
from dare_core.catalog import Catalog, Registered
from dare_core.spec.sections import OptimSection, PeftSection, RunSection

SNAPSHOT = Path(__file__).with_name("public_surface.json")


def surface() -> dict[str, Any]:
    """Core's own sections, and every component of core and the official plugins of this repository."""
    ours = {"dare-core"} | {package.name.replace("_", "-") for package in plugin_packages()}
    catalog = Catalog.load()
    components = {
        f"{item.slot}: {item.qualified}": _component(catalog, item)
        for report in catalog.reports
        if report.distribution in ours
        for item in report.components
    }
    core = {name: _fields(section) for name, section in _CORE_SECTIONS.items()}
    return {"sections": core, "components": dict(sorted(components.items()))}


_CORE_SECTIONS: dict[str, type[SectionConfig]] = {"optim": OptimSection, "peft": PeftSection, "run": RunSection}


def _component(catalog: Catalog, item: Registered) -> dict[str, Any]:
    component = item.component
    return {
        "provides": sorted(component.provides),
        "needs": sorted(component.needs),
        "wants": to_jsonable_python(dict(sorted(component.defaults.items()))),
        "presets": to_jsonable_python({name: dict(sorted(v.items())) for name, v in sorted(component.presets.items())}),
        "fields": _fields(catalog.config_class(item)) if component.config else {},
    }


def _fields(section: type[SectionConfig]) -> dict[str, Any]:
    """Field -> its default; ``<required>`` where there is none."""
    return {
        name: "<required>"
        if field.is_required()
        else to_jsonable_python(field.get_default(call_default_factory=True, validated_data={}))
        for name, field in sorted(section.model_fields.items())
    }


def written() -> dict[str, Any]:
    """The snapshot as committed."""
    found: dict[str, Any] = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Write the snapshot, or say that ``--write`` does so."""
    if sys.argv[1:] != ["--write"]:
        sys.stderr.write("usage: python -m tests.architecture.public_surface --write\n")
        return 2
    SNAPSHOT.write_text(json.dumps(surface(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
