"""Which files or folder a data section's path names, and the files' hash."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterable
from pathlib import Path

from dare_core.errors import Problem, UserError

_CHUNK = 1 << 20
#: what `save_to_disk` of the datasets library leaves in the folder of one split, and in that of several
_ONE_SPLIT = "state.json"
_SPLITS = "dataset_dict.json"


def matching_files(path: str, suffixes: tuple[str, ...]) -> list[Path]:
    """The file at ``path``, the files with these suffixes in that folder, or those matching a pattern; sorted.

    Raises:
        UserError: there is none; says where it looked.
    """
    place = Path(path)
    if place.is_file():
        return [place]
    if place.is_dir():
        files = sorted(file for file in place.iterdir() if file.is_file() and file.name.endswith(suffixes))
        if not files:
            raise UserError(Problem(f"the folder holds no file ending in {' or '.join(suffixes)}", where=path))
        return files
    if glob.has_magic(path):
        files = sorted(file for file in map(Path, glob.glob(path, recursive=True)) if file.is_file())
        if files:
            return files
    raise UserError(missing_path(path))


def split_folder(path: str, split: str | None) -> Path:
    """The folder of one split below a folder written by `save_to_disk` of the datasets library.

    Raises:
        UserError: not such a folder, or a split is missing, unknown, or named where there is only one.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(missing_path(path))
    if (folder / _ONE_SPLIT).is_file():
        if split is not None:
            message = f"split '{split}' was asked for, but the folder holds one unnamed split"
            raise UserError(Problem(message, where=path, hint="leave 'split' out"))
        return folder
    if not (folder / _SPLITS).is_file():
        message = f"not a folder written by save_to_disk: it has neither {_ONE_SPLIT} nor {_SPLITS}"
        raise UserError(Problem(message, where=path, hint="folders of other files need 'kind'"))
    splits = sorted(state.parent.name for state in folder.glob(f"*/{_ONE_SPLIT}"))
    if split not in splits:
        given = "no split was chosen" if split is None else f"there is no split '{split}'"
        raise UserError(Problem(given, where=path, hint=f"'split' may be {', '.join(splits)}"))
    return folder / str(split)


def missing_path(path: str) -> Problem:
    """The problem that nothing is at ``path``, with the place where the search ended."""
    looked = Path(path).absolute()
    parent = next(folder for folder in looked.parents if folder.is_dir())
    return Problem(
        f"no such file or folder: {looked}",
        where=path,
        hint=f"paths are relative to the working directory; {parent} is the last folder that exists",
    )


def hash_files(files: Iterable[Path]) -> str:
    """SHA-256 of the files' content, in order."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.stat().st_size}\x1f".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
