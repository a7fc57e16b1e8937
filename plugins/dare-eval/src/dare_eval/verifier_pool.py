"""Checks with a hard wall-clock limit that hold from any thread and any event loop.

A few worker processes stay alive; each item goes to one of them over a pipe. An item that runs over its time is ended
by killing its process, and a fresh process takes its place. No signals and no timers run in the calling process,
nothing is forked (so CUDA and thread pools of the caller are safe), and the caller's ``__main__`` is not imported
again.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal

#: seconds in which a worker must have imported its target
START_LIMIT = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one item.

    Attributes:
        result: the target's answer, or None.
        failure: None, ``timeout`` (time or memory limit reached) or ``error`` (the check itself failed).
        detail: one line about the failure.
    """

    result: Mapping[str, Any] | None
    failure: Literal["timeout", "error"] | None = None
    detail: str = ""


class _OutOfTimeError(Exception):
    """The deadline passed while waiting for a worker."""


class _DiedError(Exception):
    """The worker closed its pipe."""


class _Worker:
    """One process. Not thread-safe: a worker belongs to one item at a time."""

    def __init__(self, target: str, memory_mb: int) -> None:
        folders = [folder for folder in sys.path if folder]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dare_eval.verifier_worker", target, str(memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C in the terminal is the caller's business
            # a fixed hash seed: the order in which terms are visited must not change a verdict
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONHASHSEED": "0"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin.fileno()
        self._stdout = self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._greeted = False

    @property
    def lost(self) -> bool:
        """It was ready once and has ended since, while idle."""
        return self._greeted and self._process.poll() is not None

    def wait_until_ready(self) -> str | None:
        """None once the target is imported, else why it could not be."""
        if self._greeted:
            return None
        reply = self._exchange(b"", time.monotonic() + START_LIMIT)
        self._greeted = "failed" not in reply
        return reply.get("failed")

    def ask(self, item: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """The worker's reply to ``item``.

        Raises:
            _OutOfTimeError: after ``limit`` seconds; the worker is still busy and must be killed.
            _DiedError: the process ended.
        """
        deadline = time.monotonic() + limit
        line = json.dumps({"item": item, "cpu_seconds": math.ceil(limit) + 2}).encode() + b"\n"
        return self._exchange(line, deadline)

    def _exchange(self, line: bytes, deadline: float) -> dict[str, Any]:
        received = bytearray()
        unsent = memoryview(line)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            if unsent:
                selector.register(self._stdin, selectors.EVENT_WRITE)
            while not received.endswith(b"\n"):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise _OutOfTimeError
                for key, _ in selector.select(remaining):
                    if key.fd == self._stdout:
                        received += self._receive()
                        continue
                    unsent = self._send(unsent)
                    if not unsent:
                        selector.unregister(self._stdin)
        reply: dict[str, Any] = json.loads(received)
        return reply

    def _receive(self) -> bytes:
        chunk = os.read(self._stdout, 1 << 16)
        if not chunk:
            raise _DiedError
        return chunk

    def _send(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._stdin, unsent) :]
        except BrokenPipeError as error:
            raise _DiedError from error

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """Kill the process, release its pipes, return its exit code."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return self._process.wait()


class VerifierPool:
    """Worker processes that run one function, ``target(item: dict) -> dict``, with a time limit per item.

    The constructor returns when the workers are ready, so that their start never eats into an item's time.

    Args:
        target: ``"package.module:function"``, imported in the workers only. Items and results are JSON.
        workers: processes kept alive, and items checked at the same time.
        memory_mb: address space of a worker, in MiB; over it, an item counts as a timeout.
    """

    def __init__(self, target: str, workers: int = 2, memory_mb: int = 4096) -> None:
        self._target = target
        self._count = workers
        self._memory_mb = memory_mb
        self._closed = False
        self._lock = threading.Lock()
        self._broken: str | None = None
        self._open()
        for worker in tuple(self._workers):
            self._broken = self._broken or self._why_not_ready(worker)

    def ask(self, items: Sequence[Mapping[str, Any]], limit: float) -> list[Reply]:
        """One reply per item, in order. Never raises for what an item holds.

        Args:
            items: JSON-serialisable mappings.
            limit: wall-clock seconds per item, from the moment a ready worker takes it.
        """
        if self._owner != os.getpid():
            self._open()  # a forked child has neither our threads nor a right to our pipes
        futures: list[Future[Reply]] = []
        try:
            for item in items:
                with self._lock:
                    problem = "the verifier pool is closed" if self._closed else self._broken
                    if problem is not None:
                        return [Reply(None, "error", problem) for _ in items]
                    futures.append(self._threads.submit(self._serve, item, limit))
            return [self._result(future) for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End all workers. Items in flight come back as errors."""
        with self._lock:
            if self._closed or self._owner != os.getpid():
                return
            self._closed = True
            for worker in self._workers:
                worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._at_exit()

    def _open(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="verifier")
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers: set[_Worker] = set()
        self._at_exit = weakref.finalize(self, _end_all, self._workers, self._owner)
        for _ in range(self._count):
            self._start_worker()

    def _start_worker(self) -> None:
        worker = _Worker(self._target, self._memory_mb)
        self._workers.add(worker)
        self._idle.put(worker)

    def _result(self, future: Future[Reply]) -> Reply:
        try:
            return future.result()
        except CancelledError:
            return Reply(None, "error", "the verifier pool was closed")

    def _serve(self, item: Mapping[str, Any], limit: float) -> Reply:
        worker = self._idle.get()
        while worker.lost:
            self._replace(worker)
            worker = self._idle.get()
        problem = self._why_not_ready(worker)
        if problem is not None:
            self._replace(worker)
            return Reply(None, "error", problem)
        try:
            reply = worker.ask(item, limit)
        except _OutOfTimeError:
            self._replace(worker)
            return Reply(None, "timeout", f"no verdict within {limit:g} s")
        except _DiedError:
            return Reply(None, "error", f"the verifier's process ended with exit code {self._replace(worker)}")
        self._idle.put(worker)
        if "exhausted" in reply:
            return Reply(None, "timeout", reply["exhausted"])
        if "failed" in reply:
            return Reply(None, "error", reply["failed"])
        return Reply(reply["result"])

    def _why_not_ready(self, worker: _Worker) -> str | None:
        try:
            problem = worker.wait_until_ready()
        except _OutOfTimeError:
            problem = f"not ready after {START_LIMIT:g} s"
        except _DiedError:
            problem = "its process ended"
        return None if problem is None else f"the verifier did not start: {problem}"

    def _replace(self, worker: _Worker) -> int:
        code = worker.end()
        with self._lock:
            self._workers.discard(worker)
            if not self._closed:
                self._start_worker()
        return code


def _end_all(workers: set[_Worker], owner: int) -> None:
    """End what is left of a pool. Only the process that started the workers may: a fork holds copies."""
    if owner == os.getpid():
        for worker in workers:
            worker.end()
        workers.clear()
