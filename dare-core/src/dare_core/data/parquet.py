"""Parquet files, read in batches. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dare_core.data.files import hash_files
from dare_core.errors import Problem, UserError
from dare_core.interfaces.data import DataSource

if TYPE_CHECKING:
    from dare_core.data.config import ParquetSection

_ROWS_AT_ONCE = 1024


class Parquet(DataSource):
    """Rows of one or several files; nested columns become mappings and lists."""

    config: ParquetSection

    def rows(self) -> Iterator[tuple[str, Mapping[str, Any] | Problem]]:
        """See :meth:`DataSource.rows`."""
        import pyarrow as pa
        from pyarrow import parquet

        for path in self.config.files():
            try:
                with parquet.ParquetFile(path) as file:
                    number = 0
                    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
                        for row in batch.to_pylist():
                            yield f"{path}[{number}]", row
                            number += 1
            except (OSError, pa.ArrowException) as error:
                raise UserError(Problem(f"not a readable Parquet file: {error}", where=str(path))) from error

    def fingerprint(self) -> str:
        """Hash of the files as they are on disk."""
        return hash_files(self.config.files())
