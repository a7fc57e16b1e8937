"""The child's side: ``python -I -S harness.py VERDICTS NONCE CPU_SECONDS MEGABYTES``, in a folder with ``program.py``.

Limits itself, imports the program, and then writes ``passed`` and the nonce to the descriptor VERDICTS. The nonce lies
unread in the pipe NONCE until the program and its tests are through, so neither an early exit nor printed text passes.
Imports nothing of this package: it runs without site packages.
"""

from __future__ import annotations

import os
import resource
import sys

FILE_BYTES = 16 << 20
OPEN_FILES = 64
PROCESSES = 64


def main(arguments: list[str]) -> None:
    """Run ``program.py`` of the working folder."""
    verdicts, nonce, seconds, megabytes = map(int, arguments)
    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, megabytes << 20),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, PROCESSES),
    ):
        hard = resource.getrlimit(what)[1]
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (wanted, wanted))
    os.write(verdicts, b"started\n")
    sys.path.insert(0, os.getcwd())
    try:
        __import__("program")
    except SyntaxError as error:
        _tell(verdicts, "syntax_error", error)
    except BaseException as error:  # an exit is no pass either
        _tell(verdicts, "failed", error)
    else:
        os.write(verdicts, b"passed " + os.read(nonce, 1000) + b"\n")
    # Threads and exit handlers of the program have no say any more.
    os._exit(0)


def _tell(verdicts: int, status: str, error: BaseException) -> None:
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:  # the exception's own text may fail
        text = type(error).__name__
    os.write(verdicts, f"{status} {' '.join(text[:400].split())}\n".encode(errors="replace"))


if __name__ == "__main__":
    main(sys.argv[1:])
