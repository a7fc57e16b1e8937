"""One writer per run folder.

The lock is an advisory record lock on the file ``.lock``, whose content names the holder for messages. The
system releases it when the process ends, however it ends, so a file left behind by a killed run locks nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from dare_core.errors import Problem, UserError

LOCK = ".lock"

# Record locks do not exclude a second opener in the same process, so these are remembered.
_held: set[Path] = set()


class FolderLock:
    """Held from construction until :meth:`release`.

    Raises:
        UserError: another writer holds the folder; names its process.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder.resolve() / LOCK
        if self._path in _held:
            raise _locked(folder, f"this process ({os.getpid()})")
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            raise _locked(folder, _holder(self._path)) from error
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps({"pid": os.getpid()}).encode(), 0)
        _held.add(self._path)

    def release(self) -> None:
        """Let others write. Safe to call twice. The file stays: removing it could let two others in at once."""
        if self._path in _held:
            _held.discard(self._path)
            os.close(self._handle)


def _holder(path: Path) -> str:
    try:
        return f"process {int(json.loads(path.read_text())['pid'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _locked(folder: Path, holder: str) -> UserError:
    return UserError(
        Problem(
            f"the run is being written by {holder}",
            where=str(folder),
            hint="wait for it or stop it; the lock goes when that process ends",
        )
    )
