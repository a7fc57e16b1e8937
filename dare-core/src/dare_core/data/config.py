"""Options of the data sections that core reads itself."""

from __future__ import annotations

from pydantic import Field, model_validator

from dare_core.data.template import Template
from dare_core.spec.sections import DataSection


class LocalRowsSection(DataSection):
    """Rows on local disk."""

    @model_validator(mode="after")
    def _templates_parse(self) -> LocalRowsSection:
        chat = [turn.content for turn in self.prompt] if isinstance(self.prompt, tuple) else [self.prompt]
        for text in (*chat, self.completion, self.chosen, self.rejected, self.reference):
            if text is not None:
                Template.parse(text)
        return self


class JsonLinesSection(LocalRowsSection):
    """JSON lines, plain or gzip."""

    path: str = Field(
        description="File, folder of .jsonl and .jsonl.gz files, or pattern such as 'data/part-*.jsonl', "
        "relative to the working directory; several files are read in sorted order."
    )


class ParquetSection(LocalRowsSection):
    """Parquet files."""

    path: str = Field(
        description="File, folder of .parquet files, or pattern such as 'data/train-*.parquet', "
        "relative to the working directory; several files are read in sorted order."
    )


class DatasetsSection(LocalRowsSection):
    """A folder written by `save_to_disk` of the datasets library."""

    path: str = Field(description="Folder, relative to the working directory. Nothing is downloaded.")
    split: str | None = Field(None, description="Split to read, where the folder holds several, e.g. 'train'.")
