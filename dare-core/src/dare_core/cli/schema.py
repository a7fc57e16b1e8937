"""``dare schema``: a JSON schema of specs for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dare_core.cli.context import catalog, emit
from dare_core.errors import Problem, UserError
from dare_core.spec.schema import spec_schema


def schema(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write here instead of to stdout.")
    ] = None,
) -> int:
    """Write a JSON schema of specs, from all installed components; editors complete and check keys by it."""
    data = spec_schema(catalog())
    if output is None:
        emit(data)
        return 0
    try:
        output.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(Problem(f"cannot write: {error.strerror}", where=str(output))) from error
    return 0
