"""Folders written by ``save_to_disk`` of the datasets library. Needs datasets; never reaches the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dare_core.data.files import hash_files, missing_path
from dare_core.errors import Problem, UserError
from dare_core.interfaces.data import DataSource

if TYPE_CHECKING:
    from dare_core.data.config import DatasetsSection

_ONE_SPLIT = "state.json"
_SPLITS = "dataset_dict.json"


class DatasetsFolder(DataSource):
    """One split of a saved dataset."""

    config: DatasetsSection

    def rows(self) -> Iterator[tuple[str, Mapping[str, Any] | Problem]]:
        """See :meth:`DataSource.rows`.

        Raises:
            UserError: not such a folder, or a split is missing, unknown, or named where there is only one.
        """
        from datasets import Dataset

        folder = self._folder()
        try:
            data = Dataset.load_from_disk(str(folder))
        except (OSError, ValueError) as error:
            raise UserError(Problem(f"cannot be read: {error}", where=str(folder))) from error
        # Without a format, columns come as plain Python values.
        for number, row in enumerate(data.with_format(None)):
            yield f"{folder}[{number}]", row

    def fingerprint(self) -> str:
        """Hash of the data files, without the library's own notes, which differ from save to save."""
        return hash_files(sorted(self._folder().glob("*.arrow")))

    def _folder(self) -> Path:
        folder = Path(self.config.path)
        if not folder.is_dir():
            raise UserError(missing_path(self.config.path))
        if (folder / _ONE_SPLIT).is_file():
            if self.config.split is not None:
                message = f"split '{self.config.split}' was asked for, but the folder holds one unnamed split"
                raise UserError(Problem(message, where=str(folder), hint="leave 'split' out"))
            return folder
        if not (folder / _SPLITS).is_file():
            message = f"not a folder written by save_to_disk: it has neither {_ONE_SPLIT} nor {_SPLITS}"
            raise UserError(Problem(message, where=str(folder)))
        splits = sorted(state.parent.name for state in folder.glob(f"*/{_ONE_SPLIT}"))
        if self.config.split not in splits:
            given = "no split was chosen" if self.config.split is None else f"there is no split '{self.config.split}'"
            raise UserError(Problem(given, where=str(folder), hint=f"'split' may be {', '.join(splits)}"))
        return folder / self.config.split
