"""``dare export``: a trained model in its published layout, its adapter in peft's, or its value model."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from dare_core.cli.context import emit
from dare_core.cli.sources import checkpoint_of, source_of
from dare_core.cli.spec_arguments import AsJson
from dare_core.cli.value_models import value_source_of
from dare_core.errors import Problem, UserError
from dare_core.run.checkpoint import verify

Source = Annotated[Path, typer.Argument(help="Run folder, or one of its checkpoints.")]
Target = Annotated[Path, typer.Option("--output", "-o", help="Folder to write; must not exist.")]
Merge = Annotated[bool, typer.Option("--merge", help="Merge an adapter into its base: a whole model folder.")]
ValueModel = Annotated[
    bool,
    typer.Option("--value-model", help="The value model trained beside the policy, adapters merged, with its head."),
]
Best = Annotated[bool, typer.Option("--best", help="The best checkpoint by run.keep_best instead of the last one.")]


def export(
    source: Source,
    output: Target,
    merge: Merge = False,
    best: Best = False,
    value_model: ValueModel = False,
    as_json: AsJson = False,
) -> int:
    """Write a trained model folder (published layout) or adapter folder (peft's format)."""
    if output.exists():
        raise UserError(Problem(f"{output} exists; nothing is written over", hint="name a folder that does not exist"))
    found = checkpoint_of(source, best)
    if found is None:
        raise UserError(Problem("is no run folder and none of a run's checkpoints", where=str(source)))
    checkpoint = found[1]
    verify(checkpoint)
    adapter = checkpoint.path / "adapter"
    if merge and not adapter.is_dir():
        raise UserError(Problem("this run trained the whole model: there is no adapter to merge", where=str(source)))
    if value_model:
        _write_value_model(source, best, output)
    elif merge:
        _merge(source, best, output)
    else:
        shutil.copytree(adapter if adapter.is_dir() else checkpoint.path / "model", output)
    kind = "value model" if value_model else "adapter" if adapter.is_dir() and not merge else "model"
    if as_json:
        emit({"folder": str(output), "kind": kind, "step": checkpoint.step})
    else:
        sys.stdout.write(f"{kind} of step {checkpoint.step} written to {output}\n")
    return 0


def _write_value_model(source: Path, best: bool, output: Path) -> None:
    from dare_core.loops.placement import load_value_model, take_trained

    found = value_source_of(source, best)
    model = load_value_model(found.model, found.peft, found.seed, found.section.path)
    take_trained(model, found.trainer)
    model.save(output)


def _merge(source: Path, best: bool, output: Path) -> None:
    from dare_core.loops.placement import load_model

    found = source_of(source, adapter=None, wishes={}, sets=[], best=best)
    load_model(found.model, found.peft, found.seed).save(output)
