"""``dare eval compare`` and ``dare eval rescore``: reading what evaluations left."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dare_core.cli.context import catalog, emit
from dare_core.cli.spec_arguments import AsJson
from dare_core.components import Slot
from dare_core.errors import Problem, UserError
from dare_core.run.evaluations import PROTOCOL, EvaluationFolder, differences

app = typer.Typer()

Folders = Annotated[list[Path], typer.Argument(help="Evaluations of one task, or folders of several.")]
Folder = Annotated[Path, typer.Argument(help="A finished evaluation: the folder with items.jsonl.")]
Into = Annotated[Path | None, typer.Option("--output", "-o", help="Write the judged items and their result here.")]
#: what is compared, and no part of how: a model's identity, but for how it computes
COMPARED = ("weights.", "model.", "model_kind")
COMPUTES = ("model.dtype", "model.attention", "model.device")


@app.command("compare", short_help="Put evaluations side by side and name every difference of protocol.")
def compare(folders: Folders, as_json: AsJson = False) -> int:
    """Put evaluations side by side. A row whose protocol differs from the first one's is marked with `!` and every key
    that differs is listed with both values; such scores are not comparable."""
    if len(folders) < 2:
        raise UserError(Problem("give at least two evaluations"))
    tables = [_evaluations(folder) for folder in folders]
    tasks = list(dict.fromkeys(task for table in tables for task in table))
    rows = [_row(task, [table.get(task) for table in tables]) for task in tasks]
    if as_json:
        emit({"folders": [str(folder) for folder in folders], "tasks": rows})
    else:
        _write(folders, rows)
    return 0


def _evaluations(folder: Path) -> dict[str, EvaluationFolder]:
    """Task -> evaluation: ``folder`` itself or what lies in it."""
    found = [folder] if (folder / PROTOCOL).is_file() else sorted(path.parent for path in folder.glob(f"*/{PROTOCOL}"))
    if not found:
        raise UserError(Problem("no evaluation lies here: no protocol.json", where=str(folder)))
    opened = [EvaluationFolder(path) for path in found]
    return {str(one.protocol().get("task", one.path.name)): one for one in opened}


def _row(task: str, found: Sequence[EvaluationFolder | None]) -> dict[str, Any]:
    protocols = [None if one is None else one.protocol() for one in found]
    first = next(protocol for protocol in protocols if protocol is not None)
    columns: list[dict[str, Any] | None] = []
    for one, protocol in zip(found, protocols, strict=True):
        if one is None or protocol is None:
            columns.append(None)
            continue
        result = one.result()
        differing = {key: list(values) for key, values in differences(first, protocol).items()}
        unlike = any(map(_is_protocol, differing))
        columns.append({**result, "unlike": unlike, "differences": differing})
    return {"task": task, "columns": columns}


def _is_protocol(key: str) -> bool:
    return key.startswith(COMPUTES) or not key.startswith(COMPARED)


def _write(folders: Sequence[Path], rows: Sequence[Mapping[str, Any]]) -> None:
    for number, folder in enumerate(folders, start=1):
        sys.stdout.write(f"[{number}] {folder}\n")
    for row in rows:
        cells = [f"[{n}] {_cell(column)}" for n, column in enumerate(row["columns"], start=1)]
        sys.stdout.write(f"{row['task']}: {'   '.join(cells)}\n")
        for number, column in enumerate(row["columns"], start=1):
            for key, (there, here) in (column or {"differences": {}})["differences"].items():
                mark = "!" if _is_protocol(key) else " "
                sys.stdout.write(f"  {mark} {key}: [1] {_value(there)}, [{number}] {_value(here)}\n")


def _cell(column: Mapping[str, Any] | None) -> str:
    if column is None:
        return "-"
    low, high = column["interval"]
    interval = "" if low is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return (
        f"{'!' if column['unlike'] else ''}{column['metric']} {100 * column['value']:.2f} %{interval} n {column['n']}"
    )


def _value(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"


@app.command("rescore", short_help="Judge stored responses again, without a model.")
def rescore(folder: Folder, output: Into = None, as_json: AsJson = False) -> int:
    """Judge stored responses again by the rules of the installed packages; no model is needed. Prints both results."""
    evaluation = EvaluationFolder(folder)
    before = evaluation.result()
    from dare_core.cli.eval import item_evaluator
    from dare_core.loops.item_evaluation import result_of
    from dare_core.spec.nodes import node_of
    from dare_core.spec.options import OptionReader
    from dare_core.spec.plan import Origin

    reader = OptionReader(catalog())
    choice = reader.item(Slot.EVALUATOR, node_of(evaluation.evaluator(), Origin(source="spec")), "eval")
    if reader.problems or choice is None:
        raise UserError(reader.problems)
    evaluator = item_evaluator(choice)
    try:
        items = evaluator.judged_again(evaluation.items())
    finally:
        evaluator.close()
    after = result_of(evaluator, items, before["protocol"])
    if output is not None:
        written = EvaluationFolder(output)
        written.begin(evaluation.protocol(), evaluation.evaluator())
        written.finish(items, after)
    if as_json:
        emit({"before": before, "after": after})
    else:
        for name, result in (("stored", before), ("again", after)):
            sys.stdout.write(f"{name}: {result['metric']} {100 * result['value']:.2f} %  n {result['n']}\n")
    return 0
