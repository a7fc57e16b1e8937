"""Folders written by ``save_to_disk`` of the datasets library. Needs datasets; never reaches the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dare_core.data.files import hash_files
from dare_core.errors import Problem, UserError
from dare_core.interfaces.data import DataSource

if TYPE_CHECKING:
    from dare_core.data.config import DatasetsSection


class DatasetsFolder(DataSource):
    """One split of a saved dataset."""

    config: DatasetsSection

    def rows(self) -> Iterator[tuple[str, Mapping[str, Any] | Problem]]:
        """See :meth:`DataSource.rows`.

        Raises:
            UserError: not such a folder, or a split is missing, unknown, or named where there is only one.
        """
        from datasets import Dataset

        folder = self.config.folder()
        try:
            data = Dataset.load_from_disk(str(folder))
        except (OSError, ValueError) as error:
            raise UserError(Problem(f"cannot be read: {error}", where=str(folder))) from error
        # Without a format, columns come as plain Python values.
        for number, row in enumerate(data.with_format(None)):
            yield f"{folder}[{number}]", row

    def fingerprint(self) -> str:
        """Hash of the data files, without the library's own notes, which differ from save to save."""
        return hash_files(sorted(self.config.folder().glob("*.arrow")))
