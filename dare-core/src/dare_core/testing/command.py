"""Runs the real ``dare`` command in a folder of its own and returns everything it left."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

_START = "import sys; from dare_core.cli.main import main; sys.exit(main())"


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """What a command did.

    Attributes:
        code: exit code.
        stdout, stderr: what it wrote.
        folder: its working directory.
    """

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def files(self) -> tuple[str, ...]:
        """Files in the working directory, relative and sorted."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return tuple(sorted(path.relative_to(self.folder).as_posix() for path in found))


def run_dare(
    *arguments: str,
    folder: Path,
    python_path: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> CommandResult:
    """Run ``dare`` in a process of its own.

    Args:
        arguments: the command line behind ``dare``.
        folder: working directory; created if missing.
        python_path: folders with further distributions.
        environment: variables set besides this process's own.
        timeout: seconds after which the command is killed.

    Raises:
        subprocess.TimeoutExpired: it took too long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([*map(str, python_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": path, "COLUMNS": "120", **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-c", _START, *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return CommandResult(code=done.returncode, stdout=done.stdout, stderr=done.stderr, folder=folder)


def run_dare_here(*arguments: str, folder: Path, environment: Mapping[str, str] | None = None) -> CommandResult:
    """Run ``dare`` in this process: faster, and plugins made visible here are seen. Otherwise as :func:`run_dare`."""
    from dare_core.cli.main import main

    folder.mkdir(parents=True, exist_ok=True)
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "120", **(environment or {})}),  # undoes what the command itself sets
        contextlib.chdir(folder),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        code = main(arguments)
    return CommandResult(code=code, stdout=stdout.getvalue(), stderr=stderr.getvalue(), folder=folder)
