"""``dare export``: a trained model in its published layout, or its adapter in peft's."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from dare_core.cli.context import catalog, emit
from dare_core.cli.spec_arguments import AsJson
from dare_core.errors import Problem, UserError
from dare_core.run.checkpoint import COMPLETE, Checkpoint, verify
from dare_core.run.folder import RunFolder

Source = Annotated[Path, typer.Argument(help="Run folder, or one of its checkpoints.")]
Target = Annotated[Path, typer.Option("--output", "-o", help="Folder to write; must not exist.")]
Merge = Annotated[bool, typer.Option("--merge", help="Merge an adapter into its base: a whole model folder.")]
Best = Annotated[bool, typer.Option("--best", help="The best checkpoint by run.keep_best instead of the last one.")]


def export(source: Source, output: Target, merge: Merge = False, best: Best = False, as_json: AsJson = False) -> int:
    """Write a trained model folder (published layout) or adapter folder (peft's format)."""
    if output.exists():
        raise UserError(Problem(f"{output} exists; nothing is written over", hint="name a folder that does not exist"))
    folder, checkpoint = _found(source, best)
    verify(checkpoint)
    adapter = checkpoint.path / "adapter"
    if merge and not adapter.is_dir():
        raise UserError(Problem("this run trained the whole model: there is no adapter to merge", where=str(source)))
    if merge:
        _merge(folder, adapter, output)
    else:
        shutil.copytree(adapter if adapter.is_dir() else checkpoint.path / "model", output)
    kind = "adapter" if adapter.is_dir() and not merge else "model"
    if as_json:
        emit({"folder": str(output), "kind": kind, "step": checkpoint.step})
    else:
        sys.stdout.write(f"{kind} of step {checkpoint.step} written to {output}\n")
    return 0


def _found(source: Path, best: bool) -> tuple[RunFolder, Checkpoint]:
    if (source / COMPLETE).is_file():
        step = int(source.resolve().name.removeprefix("step_"))
        return RunFolder.open(source.resolve().parent.parent, write=False), Checkpoint(step, source)
    folder = RunFolder.open(source, write=False)
    found = folder.latest_checkpoint()
    if best:
        recorded = folder.state().best
        if recorded is None:
            raise UserError(Problem("no best checkpoint is recorded: run.keep_best was not set", where=str(source)))
        found = next((c for c in folder.checkpoints() if c.step == recorded.step), None)
    if found is None:
        raise UserError(Problem("the run has no complete checkpoint yet", where=str(source)))
    return folder, found


def _merge(folder: RunFolder, adapter: Path, output: Path) -> None:
    from dare_core.components import Slot
    from dare_core.loops.placement import load_model
    from dare_core.spec.resolve import plan_from_resolved

    plan = plan_from_resolved(folder.resolved(), catalog())
    if plan.peft is None:
        raise UserError(Problem("the run's spec has no peft section", where=str(folder.path)))
    section = plan.peft.model_copy(update={"adapter": str(adapter)})
    load_model(plan[Slot.MODEL], section, plan.run.seed).save(output)
