"""Checkpoints: folders ``step_N`` that are either complete or not there.

A checkpoint is written under a hidden name, its files are flushed, ``complete.json`` (relative paths, sizes and
SHA-256) is written last, and only then is the folder renamed. A kill at any moment leaves the earlier
checkpoints as they were.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_core.errors import Problem, UserError
from dare_core.run.atomic import sync_file, sync_folder, write_json

COMPLETE = "complete.json"
#: folder of a value model's state within a checkpoint's ``trainer``
VALUE_STATE = "value"
_STEP = re.compile(r"step_(\d+)")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint folder and the number of training steps done when it was written."""

    step: int
    path: Path


def complete_checkpoints(parent: Path) -> list[Checkpoint]:
    """Checkpoints of a run that are complete, oldest first. Sizes and hashes are not looked at."""
    found = []
    for folder in parent.glob("step_*"):
        match = _STEP.fullmatch(folder.name)
        if match and (folder / COMPLETE).is_file():
            found.append(Checkpoint(int(match[1]), folder))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def latest_complete(parent: Path) -> Checkpoint | None:
    """The newest complete checkpoint, or None."""
    return next(iter(reversed(complete_checkpoints(parent))), None)


@contextmanager
def writing(parent: Path, step: int) -> Iterator[Path]:
    """A temporary folder that becomes ``parent/step_N`` when the block ends without an exception.

    An exception removes the temporary folder. A ``step_N`` that exists is replaced.

    Raises:
        ValueError: the block wrote nothing.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(parent)
    temporary, final = parent / f".step_{step}.tmp", parent / f"step_{step}"
    temporary.mkdir()
    try:
        yield temporary
        files = _describe(temporary)
        if not files:
            raise ValueError(f"nothing was written into the checkpoint of step {step}")
        write_json(temporary / COMPLETE, {"step": step, "files": files})
        for folder in [temporary, *(path for path in temporary.rglob("*") if path.is_dir())]:
            sync_folder(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if final.exists():
        # A folder cannot be renamed onto a folder that holds files; the old one stays whole until the new one is.
        os.rename(final, parent / f".step_{step}.old")
    os.rename(temporary, final)
    sync_folder(parent)
    remove_leftovers(parent)


def remove_leftovers(parent: Path) -> None:
    """Clear what a killed writer left: a half-written folder goes; a checkpoint that was being replaced, and whose
    successor did not get its name, is put back. Only for the holder of the run's lock."""
    for old in parent.glob(".step_*.old"):
        name = old.name.removeprefix(".").removesuffix(".old")
        if (parent / name).exists():
            shutil.rmtree(old)
        else:
            os.rename(old, parent / name)
    for temporary in parent.glob(".step_*.tmp"):
        shutil.rmtree(temporary)


def retain(parent: Path, newest: int, best: int | None = None) -> list[int]:
    """Delete complete checkpoints except the ``newest`` ones and the one of step ``best``.

    Returns:
        The steps that were deleted. The last complete checkpoint is never among them.
    """
    if newest < 1:
        raise ValueError(f"at least one checkpoint is kept, not {newest}")
    deleted = []
    for checkpoint in complete_checkpoints(parent)[:-newest]:
        if checkpoint.step == best:
            continue
        _delete(checkpoint)
        deleted.append(checkpoint.step)
    return deleted


def drop_after(parent: Path, step: int) -> None:
    """Delete checkpoints of later steps, and what a killed writer left."""
    remove_leftovers(parent)
    for checkpoint in complete_checkpoints(parent):
        if checkpoint.step > step:
            _delete(checkpoint)


def verify(checkpoint: Checkpoint) -> None:
    """Compare every file with ``complete.json``.

    Raises:
        UserError: names each file that is missing, of another size, or altered.
    """
    problems = []
    for name, wanted in _read_complete(checkpoint.path).items():
        path = checkpoint.path / name
        if not path.is_file():
            problems.append(Problem("the file is missing", where=str(path)))
        elif path.stat().st_size != wanted["size"]:
            problems.append(Problem(f"{path.stat().st_size} bytes, {wanted['size']} were written", where=str(path)))
        elif _sha256(path) != wanted["sha256"]:
            problems.append(Problem("the content was altered after it was written", where=str(path)))
    if problems:
        raise UserError([*problems, _damaged(checkpoint.path)])


def _delete(checkpoint: Checkpoint) -> None:
    # Without complete.json a half-deleted folder is no checkpoint.
    (checkpoint.path / COMPLETE).unlink()
    shutil.rmtree(checkpoint.path)


def _describe(folder: Path) -> dict[str, dict[str, Any]]:
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            sync_file(path)
            name = path.relative_to(folder).as_posix()
            files[name] = {"size": path.stat().st_size, "sha256": _sha256(path)}
    return files


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _read_complete(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        files = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))["files"]
        return {str(name): {"size": int(f["size"]), "sha256": str(f["sha256"])} for name, f in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = Problem(f"cannot be read ({type(error).__name__}: {error})", where=str(folder / COMPLETE))
        raise UserError([problem, _damaged(folder)]) from error


def _damaged(folder: Path) -> Problem:
    return Problem(
        "the checkpoint is damaged", where=str(folder), hint="delete this folder to go back to an earlier checkpoint"
    )
