"""Options of the data sections that core reads itself."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from dare_core.data.files import matching_files, split_folder
from dare_core.data.template import Template
from dare_core.spec.sections import DataSection

_TEMPLATES = ("prompt", "completion", "chosen", "rejected", "reference")


class LocalRowsSection(DataSection):
    """Rows on local disk."""

    @model_validator(mode="after")
    def _templates_parse(self) -> LocalRowsSection:
        if self.prompt == ():
            raise ValueError("prompt: a list without turns; give {role, content} turns, or text")
        turns = self.prompt if isinstance(self.prompt, tuple) else ()
        templates = [("prompt", turn.content) for turn in turns]
        templates += [(name, text) for name in _TEMPLATES if isinstance(text := getattr(self, name), str)]
        for name, text in templates:
            try:
                Template.parse(text)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return self


class JsonLinesSection(LocalRowsSection):
    """JSON lines, plain or gzip."""

    path: str = Field(
        description="File, folder of .jsonl and .jsonl.gz files, or pattern such as 'data/part-*.jsonl', "
        "relative to the working directory; several files are read in sorted order."
    )

    def files(self) -> list[Path]:
        """What `path` names. Raises UserError where it names no file."""
        return matching_files(self.path, (".jsonl", ".jsonl.gz"))

    def check_files(self) -> None:
        """See :meth:`DataSection.check_files`."""
        self.files()


class ParquetSection(LocalRowsSection):
    """Parquet files."""

    path: str = Field(
        description="File, folder of .parquet files, or pattern such as 'data/train-*.parquet', "
        "relative to the working directory; several files are read in sorted order."
    )

    def files(self) -> list[Path]:
        """What `path` names. Raises UserError where it names no file."""
        return matching_files(self.path, (".parquet",))

    def check_files(self) -> None:
        """See :meth:`DataSection.check_files`."""
        self.files()


class DatasetsSection(LocalRowsSection):
    """A folder written by `save_to_disk` of the datasets library."""

    path: str = Field(description="Folder, relative to the working directory. Nothing is downloaded.")
    split: str | None = Field(None, description="Split to read, where the folder holds several, e.g. 'train'.")

    def folder(self) -> Path:
        """The folder of the chosen split. Raises UserError where `path` is no such folder or `split` does not fit."""
        return split_folder(self.path, self.split)

    def check_files(self) -> None:
        """See :meth:`DataSection.check_files`."""
        self.folder()
