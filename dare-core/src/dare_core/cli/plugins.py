"""``dare plugins``: what is installed, in which state, and what works with what."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from dare_core.cli.context import catalog, emit
from dare_core.cli.failures import report_faulty
from dare_core.cli.matrix import Cell, support_matrix
from dare_core.components import Slot
from dare_core.plugins import PluginReport, Registered

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List installed plugins and what works with what.",
)
_JSON = typer.Option("--json", help="Machine-readable output.")


@app.command("list")
def list_plugins(
    as_json: Annotated[bool, _JSON] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Also show capabilities, papers and targets.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if any plugin is not in order.")] = False,
) -> int:
    """List distributions with their state, and components by slot."""
    reports = catalog().reports
    if as_json:
        emit({"plugins": [_report_json(report) for report in reports]})
    else:
        _write_distributions(reports)
        for slot in Slot:
            _write_slot(slot, catalog().components(slot), show_all)
    return int(strict and report_faulty(reports))


@app.command("matrix")
def matrix(as_json: Annotated[bool, _JSON] = False) -> int:
    """Show which algorithms run with which model families and rollout backends, from declared capabilities."""
    models = support_matrix(catalog(), Slot.MODEL)
    rollouts = support_matrix(catalog(), Slot.ROLLOUT)
    if as_json:
        emit(
            {
                "models": [_cell_json("model", cell) for cell in models],
                "rollouts": [_cell_json("rollout", cell) for cell in rollouts],
            }
        )
    else:
        _write_matrix("models", models)
        _write_matrix("rollout backends", rollouts)
    return 0


def _cell_json(name: str, cell: Cell) -> dict[str, Any]:
    return {"algorithm": cell.algorithm, name: cell.other, "works": cell.works, "missing": list(cell.missing)}


def _write_matrix(title: str, cells: Sequence[Cell]) -> None:
    sys.stdout.write(f"algorithms x {title}\n")
    columns = list(dict.fromkeys(cell.other for cell in cells))
    if not columns:
        sys.stdout.write("nothing to compare: install plugins that offer both\n\n")
        return
    rows = [["", *columns]]
    for algorithm in dict.fromkeys(cell.algorithm for cell in cells):
        rows.append([algorithm, *(_cell_text(cell) for cell in cells if cell.algorithm == algorithm)])
    _write_table(rows)


def _cell_text(cell: Cell) -> str:
    if cell.works is None:
        return "-"
    return "yes" if cell.works else f"no: {', '.join(cell.missing)}"


def _report_json(report: PluginReport) -> dict[str, Any]:
    return {
        "distribution": report.distribution,
        "version": report.version,
        "status": report.status.value,
        "reason": report.reason,
        "official": report.official,
        "components": [_component_json(item) for item in report.components],
    }


def _component_json(item: Registered) -> dict[str, Any]:
    component = item.component
    return {
        "slot": item.slot.value,
        "kind": component.kind,
        "qualified": item.qualified,
        "summary": component.summary,
        "stability": component.stability,
        "provides": sorted(component.provides),
        "needs": sorted(component.needs),
        "paper": component.paper,
        "presets": sorted(component.presets),
        "target": component.target,
        "config": component.config,
        "missing": [{"import": missing.name, "install": missing.install} for missing in item.missing],
    }


def _write_distributions(reports: Sequence[PluginReport]) -> None:
    rows = [["distribution", "version", "status", "offers"]]
    for report in reports:
        kinds = ", ".join(dict.fromkeys(item.component.kind for item in report.components))
        note = f"{kinds} ({report.reason})" if kinds and report.reason else kinds or report.reason
        rows.append([report.distribution, report.version, report.status.value, note or "no components"])
    _write_table(rows)


def _write_slot(slot: Slot, components: Sequence[Registered], show_all: bool) -> None:
    if not components:
        return
    kinds = [item.component.kind for item in components]
    rows = []
    for item in components:
        component = item.component
        name = component.kind if kinds.count(component.kind) == 1 else item.qualified
        lacking = "".join(f" [needs {missing.name}: {missing.install}]" for missing in item.missing)
        rows.append([f"  {name}", component.stability, component.summary + lacking])
        if show_all:
            rows.extend(["", "", line] for line in _details(item))
    sys.stdout.write(f"{slot.value}\n")
    _write_table(rows)


def _details(item: Registered) -> list[str]:
    component = item.component
    lines = {
        "from": f"{item.distribution} {item.version}, {component.target}",
        "provides": ", ".join(sorted(component.provides)),
        "needs": ", ".join(sorted(component.needs)),
        "presets": ", ".join(sorted(component.presets)),
        "paper": component.paper,
    }
    return [f"{label}: {text}" for label, text in lines.items() if text]


def _write_table(rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned columns, two spaces apart; one line per row, so that lines can be searched."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        sys.stdout.write(f"{line}\n")
    sys.stdout.write("\n")
