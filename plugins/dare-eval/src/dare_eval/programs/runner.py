"""Runs programs: a fresh process each, with nothing of ours in it, ended with all its children by the clock.

What each child gets: an empty environment, a working folder of its own, no input, limits on processor time, memory,
files, open files and processes, and the strongest fence the system offers (:mod:`dare_eval.programs.isolation`). Its
output is read up to a bound. Success is a random token that the harness writes after the tests.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dare_core.api import DareError
from dare_eval.programs import harness
from dare_eval.programs.isolation import Isolation, strongest

Status = Literal["passed", "failed", "timeout", "syntax_error", "crashed", "runner_fault"]
#: bytes of a program's output that are kept
OUTPUT = 4096
#: seconds between looks at a child that neither writes nor ends
LOOK = 0.05


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What became of a program.

    Attributes:
        status: ``passed``; ``failed`` (an exception, a failed assertion or an exit); ``timeout`` (wall clock or
            processor time); ``syntax_error``; ``crashed`` (it ended without an exception: a signal, ``os._exit``);
            ``runner_fault`` (ours: the child could not be started or limited).
        detail: one line.
        output: the beginning of what it printed.
    """

    status: Status
    detail: str = ""
    output: str = ""


class ProgramRunner:
    """Runs programs side by side.

    Args:
        time_limit: wall-clock seconds per program.
        memory_mb: address space of a program, MiB.
        workers: programs at the same time.

    Raises:
        DareError: no child process can be started here.
    """

    def __init__(self, *, time_limit: float, memory_mb: int, workers: int) -> None:
        self._time_limit = time_limit
        self._memory_mb = memory_mb
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="program")
        self.isolation = _isolation()

    def run(self, programs: Sequence[str]) -> list[ProgramResult]:
        """One result per program, in order."""
        return list(self._threads.map(self._one, programs))

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _one(self, program: str) -> ProgramResult:
        return run_program(program, self.isolation, time_limit=self._time_limit, memory_mb=self._memory_mb)


def run_program(program: str, isolation: Isolation, *, time_limit: float, memory_mb: int) -> ProgramResult:
    """Run one program in a fresh process. Never raises for what the program does."""
    with tempfile.TemporaryDirectory(prefix="dare-program-", ignore_cleanup_errors=True) as name:
        try:
            Path(name, "program.py").write_text(program, encoding="utf-8")
        except UnicodeEncodeError as error:
            return ProgramResult("syntax_error", str(error))
        try:
            if isolation.account is not None:
                os.chown(name, isolation.account, isolation.account)
            return _Child(name, isolation, time_limit, memory_mb).result()
        except OSError as error:
            return ProgramResult("runner_fault", f"{type(error).__name__}: {error}")


_lock = threading.Lock()
_found: list[Isolation] = []


def _isolation() -> Isolation:
    """The strongest fence that lets a trivial program pass; looked for once per process."""
    with _lock:
        if not _found:
            found = strongest(lambda one: run_program("x = 1", one, time_limit=20, memory_mb=1024).status == "passed")
            if found is None:
                raise DareError("no child process can run a program here, so tasks with code cannot be judged")
            _found.append(found)
        return _found[0]


class _Child:
    """One child process and its pipes."""

    def __init__(self, folder: str, isolation: Isolation, time_limit: float, memory_mb: int) -> None:
        self._limit = time_limit
        self._nonce = secrets.token_hex(16).encode()
        self._verdicts, verdicts = os.pipe()
        nonce, give = os.pipe()
        self._output, output = os.pipe()
        try:
            os.write(give, self._nonce)
            self._process = subprocess.Popen(
                [
                    *isolation.command(folder),
                    *(sys.executable, "-I", "-S", "-B", "-X", "utf8", harness.__file__),
                    *map(str, (verdicts, nonce, math.ceil(time_limit) + 1, memory_mb)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={},
                pass_fds=(verdicts, nonce),
                start_new_session=True,
                user=isolation.account,
                group=isolation.account,
                extra_groups=None if isolation.account is None else [],
            )
        except BaseException:
            os.close(self._verdicts)
            os.close(self._output)
            raise
        finally:
            for end in (verdicts, nonce, give, output):
                os.close(end)

    def result(self) -> ProgramResult:
        """Wait until it is done or out of time, end it and all its children, and say what became of it."""
        deadline = time.monotonic() + self._limit
        said, printed = {self._verdicts: bytearray(), self._output: bytearray()}, False
        try:
            printed = self._read(said, deadline)
        finally:
            self._end()
            os.close(self._verdicts)
            os.close(self._output)
        output = bytes(said[self._output]).decode(errors="replace")
        return self._verdict(bytes(said[self._verdicts]), output, in_time=printed)

    def _read(self, said: dict[int, bytearray], deadline: float) -> bool:
        """Read both pipes up to their bound; whether the child ended before the deadline."""
        with selectors.DefaultSelector() as selector:
            for pipe in said:
                os.set_blocking(pipe, False)
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                ended = self._process.poll() is not None
                remaining = deadline - time.monotonic()
                if remaining <= 0 and not ended:
                    return False
                ready = selector.select(0 if ended else min(LOOK, remaining))
                for key, _ in ready:
                    self._take(selector, key.fd, said)
                if ended and not ready:
                    break  # a grandchild may hold the pipes open for ever
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK / 10)
        return True

    @staticmethod
    def _take(selector: selectors.BaseSelector, pipe: int, said: dict[int, bytearray]) -> None:
        chunk = os.read(pipe, 1 << 16)
        if not chunk:
            selector.unregister(pipe)
        elif len(said[pipe]) < OUTPUT:
            said[pipe] += chunk[: OUTPUT - len(said[pipe])]

    def _end(self) -> None:
        # The group outlives its leader where children of it run, and forks may race with the signal.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            for _ in range(100):
                os.killpg(self._process.pid, signal.SIGKILL)
                if self._process.poll() is not None:
                    os.killpg(self._process.pid, signal.SIGKILL)
                    time.sleep(0.001)
        self._process.wait()

    def _verdict(self, verdicts: bytes, output: str, *, in_time: bool) -> ProgramResult:
        lines = verdicts.split(b"\n")[:-1]
        if b"started" not in lines[:1]:
            if not in_time:
                return ProgramResult("timeout", f"not started within {self._limit:g} s", output)
            return ProgramResult("runner_fault", f"the child did not start: {' '.join(output.split())[:200]}", output)
        if b"passed " + self._nonce in lines:
            return ProgramResult("passed", "", output)
        if not in_time:
            return ProgramResult("timeout", f"not done within {self._limit:g} s", output)
        status, _, detail = lines[-1].decode(errors="replace").partition(" ")
        if status == "failed" or status == "syntax_error":
            return ProgramResult("failed" if status == "failed" else "syntax_error", detail, output)
        code = self._process.returncode
        if code in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
            return ProgramResult("timeout", "processor time used up", output)
        return ProgramResult("crashed", f"ended with exit code {code} before its tests were through", output)
