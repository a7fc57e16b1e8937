"""The published tables of this folder: settings, scores, and where ours must differ."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import Field, PositiveInt, model_validator

from dare_core.api import SectionConfig
from dare_core.interfaces import PublishedColumn, PublishedRow, PublishedTable


class Cell(SectionConfig):
    """One score of a table."""

    score: float | None = Field(None, ge=0, le=100, description="In percent; null = published as an image only.")
    task: str | None = Field(None, description="Instead of the row's.")
    questions: PositiveInt | None = Field(None, description="Instead of the row's.")
    options: Mapping[str, Any] = Field(default_factory=dict, description="Over the row's and the column's.")
    difference: str = Field("", description="How ours differs from what was published.")


class Row(SectionConfig):
    """One task of a table."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="The folder's name.")
    kind: str = Field("task", description="Evaluator.")
    task: str = Field(description="Its task.")
    metric: str | None = Field(None, description="The metric that was published; null = the headline.")
    questions: PositiveInt | None = Field(None, description="Questions that the published score is over.")
    options: Mapping[str, Any] = Field(default_factory=dict, description="Dotted options, over the column's.")
    cells: Mapping[str, Cell] = Field(description="Column -> score.")


class Column(SectionConfig):
    """One model of a table."""

    title: str = Field(description="The model that was scored.")
    kinds: tuple[str, ...] = Field(description="Model families for which this column is meant.")
    note: str = Field("", description="How ours differs in every row.")
    options: Mapping[str, Any] = Field(default_factory=dict, description="Dotted rollout.* and eval.* options.")


class Table(SectionConfig):
    """One file."""

    preset: str = Field(description="Name.")
    version: PositiveInt = Field(description="Raised whenever settings or scores change.")
    title: str = Field(description="One line.")
    source: str = Field(description="Citation.")
    note: str = Field("", description="What holds for the whole table.")
    columns: Mapping[str, Column] = Field(description="Name -> model.")
    rows: tuple[Row, ...] = Field(description="Tasks.")

    @model_validator(mode="after")
    def _known_columns(self) -> Table:
        unknown = {name for row in self.rows for name in row.cells} - set(self.columns)
        if unknown:
            raise ValueError(f"cells name columns that are not there: {', '.join(sorted(unknown))}")
        return self


@cache
def tables() -> Mapping[str, PublishedTable]:
    """Name -> table, of every file here, sorted by name."""
    found = [
        Table.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
        for file in files("dare_eval").joinpath("published").iterdir()
        if file.name.endswith(".yaml")
    ]
    return {table.preset: _published(table) for table in sorted(found, key=lambda table: table.preset)}


def _published(table: Table) -> PublishedTable:
    columns = {
        name: PublishedColumn(
            title=column.title,
            kinds=column.kinds,
            rows=tuple(_row(column, row, row.cells[name]) for row in table.rows if name in row.cells),
        )
        for name, column in table.columns.items()
    }
    return PublishedTable(
        name=table.preset, version=table.version, title=table.title, source=table.source, note=table.note,
        columns=columns,
    )  # fmt: skip


def _row(column: Column, row: Row, cell: Cell) -> PublishedRow:
    return PublishedRow(
        name=row.name,
        kind=row.kind,
        task=cell.task or row.task,
        options={**column.options, **row.options, **cell.options},
        score=None if cell.score is None else cell.score / 100,
        metric=row.metric,
        questions=cell.questions or row.questions,
        differences=tuple(text for text in (column.note, cell.difference) if text),
    )
