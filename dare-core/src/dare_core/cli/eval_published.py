"""``dare eval --preset``: the settings behind published scores, and what is ours beside what was published."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dare_core.cli.context import catalog, emit
from dare_core.cli.spec_arguments import AsJson
from dare_core.components import Slot
from dare_core.errors import Problem, UserError

if TYPE_CHECKING:
    from dare_core.interfaces import PublishedColumn, PublishedRow, PublishedTable

app = typer.Typer()


@app.command("presets", short_help="List published tables that can be run again.")
def presets(as_json: AsJson = False) -> int:
    """List published tables that can be run again: `dare eval --preset NAME[/COLUMN] --model FOLDER`."""
    found = published()
    if as_json:
        emit({"presets": [_as_json(table) for table in found.values()]})
        return 0
    for table in found.values():
        sys.stdout.write(f"{table.name}  (version {table.version})\n  {table.title}. {table.source}\n")
        for name, column in table.columns.items():
            scored = sum(row.score is not None for row in column.rows)
            kinds = ", ".join(column.kinds)
            sys.stdout.write(f"    /{name}  {column.title} ({kinds}): {len(column.rows)} rows, {scored} with scores\n")
    return 0


def published() -> dict[str, PublishedTable]:
    """Name -> table, of every installed evaluator that can be loaded."""
    from dare_core.interfaces import ItemEvaluator

    found: dict[str, PublishedTable] = {}
    for registered in catalog().components(Slot.EVALUATOR):
        if registered.missing:
            continue
        target = catalog().target_class(registered)
        if issubclass(target, ItemEvaluator):
            found |= target.published()
    return dict(sorted(found.items()))


def chosen_column(name: str, model: Path) -> tuple[PublishedTable, PublishedColumn]:
    """The column of ``NAME`` or ``NAME/COLUMN`` that is meant for a model.

    Raises:
        UserError: there is no such table or column, or several columns are meant for the model's family.
    """
    table_name, _, column = name.partition("/")
    known = published()
    if table_name not in known:
        near = get_close_matches(table_name, known, n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        hint += f"presets: {', '.join(known) or 'none installed (pip install dare-eval)'}"
        raise UserError(Problem(f"unknown preset '{table_name}'", path="--preset", hint=hint))
    table = known[table_name]
    kind = _kind_of(model)
    fitting = [one for one, found in table.columns.items() if kind in found.kinds]
    if column and column not in table.columns:
        message = f"preset '{table.name}' has no column '{column}'"
        raise UserError(Problem(message, path="--preset", hint=f"columns: {', '.join(table.columns)}"))
    if not column and len(fitting) != 1:
        message = f"preset '{table.name}' has {len(fitting)} columns for the family '{kind}'"
        names = fitting or list(table.columns)
        hint = f"name one: {', '.join(f'{table.name}/{one}' for one in names)}"
        raise UserError(Problem(message, path="--preset", hint=hint))
    return table, table.columns[column or fitting[0]]


def rows_of(column: PublishedColumn, tasks: Sequence[str]) -> tuple[PublishedRow, ...]:
    """The rows of a column, or those of ``tasks``, named by row or by task.

    Raises:
        UserError: no row has such a name.
    """
    for task in tasks:
        if not any(task in (row.name, row.task) for row in column.rows):
            hint = f"rows: {', '.join(row.name for row in column.rows)}"
            raise UserError(Problem(f"the preset has no row '{task}'", path="--task", hint=hint))
    return tuple(row for row in column.rows if not tasks or row.name in tasks or row.task in tasks)


def departures(limit: int | None, samples: int | None, sets: Sequence[str], adapter: Path | None) -> list[str]:
    """How a call departs from a preset, one sentence each."""
    found = [f"set here: {text}" for text in sets]
    if limit is not None:
        found.append(f"--limit {limit}")
    if samples is not None:
        found.append(f"--samples {samples}")
    if adapter is not None:
        found.append("an adapter is attached")
    return found


def _kind_of(model: Path) -> str:
    from dare_core.cli.sources import checkpoint_of
    from dare_core.spec.selection import read_config

    found = checkpoint_of(model, best=False)
    if found is not None:
        return str(found[0].resolved()["model"]["kind"])
    config, reason = read_config(model)
    kind = None if config is None else catalog().detect_model(config)
    if kind is None:
        raise UserError(Problem(reason or "no installed family recognises its config.json", where=str(model)))
    return kind


def as_sets(options: Mapping[str, Any]) -> list[str]:
    """Dotted options as the command line writes them."""
    return [f"{path}={json.dumps(value)}" for path, value in options.items()]


def compared(row: PublishedRow, found: Mapping[str, Any], changed: Sequence[str]) -> dict[str, Any]:
    """A result beside the published score.

    Args:
        row: what was published.
        found: what the evaluation came to.
        changed: how this call departs from the preset.

    Raises:
        UserError: the result has not the metric that was published.
    """
    result = found["result"]
    differences = [*row.differences, *changed]
    ours = None
    if result is not None:
        metrics = result["metrics"]
        if row.metric is not None and row.metric not in metrics:
            raise UserError(Problem(f"the result has no '{row.metric}'; it has {', '.join(metrics)}", where=row.name))
        ours = metrics[row.metric or result["metric"]]
        if row.questions is not None and ours["count"] != row.questions:
            differences.append(f"{ours['count']} questions, published over {row.questions}")
    return {
        "name": row.name, "metric": row.metric or (result and result["metric"]), "ours": ours, "published": row.score,
        "differences": differences,
    }  # fmt: skip


def tell(table: PublishedTable, column: PublishedColumn, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write ours beside the published scores; ``!`` marks rows whose protocol is another."""
    sys.stdout.write(f"{table.name} (version {table.version}), {column.title}\n{table.source}\n")
    if table.note:
        sys.stdout.write(f"note: {table.note}\n")
    width = max(len(row["name"]) for row in rows)
    sys.stdout.write(f"  {'':{width}}  {'ours':>22}  {'published':>9}\n")
    for row in rows:
        mark = "!" if row["differences"] else " "
        there = "-" if row["published"] is None else f"{100 * row['published']:.2f}"
        sys.stdout.write(f"{mark} {row['name']:{width}}  {_ours(row['ours']):>22}  {there:>9}\n")
        for difference in row["differences"]:
            sys.stdout.write(f"    ! {difference}\n")


def _ours(measure: Mapping[str, Any] | None) -> str:
    if measure is None:
        return "shards are open"
    if measure["low"] is None:
        return f"{100 * measure['value']:.2f}"
    return f"{100 * measure['value']:.2f} [{100 * measure['low']:.1f}, {100 * measure['high']:.1f}]"


def _as_json(table: PublishedTable) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(table)
