"""``dare show``: a resolved spec and what gave each value."""

from __future__ import annotations

import sys

from dare_core.cli.context import emit
from dare_core.cli.spec_arguments import AsJson, Overlays, Sets, SpecFile, resolved_plan
from dare_core.spec.show import shown, shown_json


def show(spec: SpecFile, overlay: Overlays = [], sets: Sets = [], as_json: AsJson = False) -> int:  # noqa: B006
    """Print every value of a resolved spec with its origin: file and line, --set, preset, component, or default."""
    plan = resolved_plan(spec, overlay, sets)
    if as_json:
        emit(shown_json(plan))
    else:
        sys.stdout.write(shown(plan))
    return 0
