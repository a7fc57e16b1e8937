"""Which files a data section's path names, and their hash."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterable
from pathlib import Path

from dare_core.errors import Problem, UserError

_CHUNK = 1 << 20


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


def missing_path(path: str) -> Problem:
    """The problem that nothing is at ``path``, with the place where the search ended."""
    looked = Path(path).absolute()
    parent = next(folder for folder in looked.parents if folder.is_dir())
    return Problem(
        f"there is nothing at {looked}",
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
