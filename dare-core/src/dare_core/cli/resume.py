"""``dare resume``: go on from the last checkpoint of a run folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from dare_core.cli.context import catalog
from dare_core.cli.run import ToStep, tell
from dare_core.cli.spec_arguments import AsJson

RunPath = Annotated[Path, typer.Argument(help="Run folder, e.g. runs/my-run.")]


def resume(run: RunPath, to_step: ToStep = None, as_json: AsJson = False) -> int:
    """Continue an interrupted run from its last checkpoint, exactly as if it had not been interrupted."""
    from dare_core.run.checkpoint import verify
    from dare_core.run.folder import RunFolder
    from dare_core.spec.resolve import plan_from_resolved

    folder = RunFolder.open(run)
    try:
        plan = plan_from_resolved(folder.resolved(), catalog())
        checkpoint = folder.latest_checkpoint()
        step = 0 if checkpoint is None else checkpoint.step
        from dare_core.loops.build import build, execute, prepare
        from dare_core.loops.progress import report_for
        from dare_core.loops.session import refuse_finished

        refuse_finished(step, plan.run.steps, folder.path)
        if checkpoint is not None:
            verify(checkpoint)
        parts = prepare(plan)
        folder.rewind(step)
        for line in folder.record_resume(step, catalog().reports):
            logging.getLogger("dare").warning("numbers may differ from an uninterrupted run: %s", line)
        job = build(parts, folder, catalog(), report_for(), checkpoint=checkpoint, until=to_step)
    except BaseException:
        folder.close()
        raise
    return tell(execute(job), as_json)
