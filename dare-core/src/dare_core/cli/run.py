"""``dare run``: train what a spec describes."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dare_core.cli.context import catalog, emit
from dare_core.cli.spec_arguments import AsJson, Overlays, Sets, SpecFile, resolved_plan
from dare_core.cli.validate import summary

if TYPE_CHECKING:
    from dare_core.loops.outcome import Outcome

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Read data, check rows, lengths and rewards, and stop before weights.")
]
ToStep = Annotated[
    int | None, typer.Option("--to-step", min=1, help="Stop after this training step; go on with `dare resume`.")
]


def run(
    spec: SpecFile,
    overlay: Overlays = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
    as_json: AsJson = False,
    dry_run: DryRun = False,
    to_step: ToStep = None,
) -> int:
    """Train what a spec describes. Ctrl-C finishes the step, saves, and says how to go on."""
    plan = resolved_plan(spec, overlay, sets)
    from dare_core.loops.build import build, execute, prepare
    from dare_core.loops.progress import report_for
    from dare_core.run.folder import RunFolder

    parts = prepare(plan)
    if dry_run:
        return _tell_dry_run(summary(plan), len(parts.examples), as_json)
    report = report_for()
    folder = RunFolder.create(plan, [spec, *overlay], catalog().reports, sets=sets, arguments=sys.argv[1:])
    try:
        job = build(parts, folder, catalog(), report, until=to_step)
    except BaseException:
        # Nothing was trained: the name stays free for the mended spec.
        folder.close()
        shutil.rmtree(folder.path)
        raise
    return tell(execute(job), as_json)


def tell(outcome: Outcome, as_json: bool) -> int:
    """Show how a run ended; returns the exit code."""
    if as_json:
        emit(outcome.to_json())
    else:
        note = f": {outcome.message}" if outcome.message else ""
        sys.stdout.write(f"{outcome.status} at step {outcome.step} in {outcome.folder}{note}\n")
    return outcome.exit_code


def _tell_dry_run(text: str, rows: int, as_json: bool) -> int:
    if as_json:
        emit({"ok": True, "summary": text, "rows": rows})
    else:
        sys.stdout.write(f"ok: {text}; {rows} rows were read and fit\n")
    return 0
