"""The arguments by which commands take a spec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dare_core.cli.context import catalog
from dare_core.spec.plan import RunPlan

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="YAML file.", show_default=False)]
Overlays = Annotated[
    list[Path],
    typer.Option("-f", "--overlay", metavar="FILE", help="Lay this file over the spec; may be repeated, later wins."),
]
Sets = Annotated[
    list[str],
    typer.Option("--set", metavar="PATH=VALUE", help="Set one value, e.g. optim.lr=1e-6; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def resolved_plan(spec: Path, overlays: Sequence[Path], sets: Sequence[str]) -> RunPlan:
    """The plan of a spec with overlays and ``--set`` values.

    Raises:
        UserError: anything is wrong with them; carries every problem.
    """
    from dare_core.spec.resolve import resolve_spec

    return resolve_spec([spec, *overlays], sets, catalog())
