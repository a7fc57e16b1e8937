"""The process that runs slow or unsafe-to-wait-for checks: ``python -m dare_eval.verifier_worker TARGET MEGABYTES``.

Reads one JSON object per line (``{"item": {...}, "cpu_seconds": n}``) and answers each with one line:
``{"result": {...}}``, ``{"exhausted": text}`` or ``{"failed": text}``. The first line says whether the target could
be imported.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import resource
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

Judge = Callable[[dict[str, Any]], dict[str, Any]]


def main(arguments: list[str]) -> int:
    """Serve until standard input closes; returns the exit code."""
    target, megabytes = arguments
    replies = _take_standard_output()
    logging.disable(logging.CRITICAL)
    _limit(resource.RLIMIT_CORE, 0)
    try:
        module, _, name = target.partition(":")
        judge: Judge = getattr(importlib.import_module(module), name)
    except Exception as error:
        _send(replies, {"failed": _describe(error)})
        return 1
    _limit(resource.RLIMIT_AS, int(megabytes) << 20)
    _send(replies, {"result": {}})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _allow_cpu(request["cpu_seconds"])
        _send(replies, _answer(judge, request["item"]))
    return 0


def _answer(judge: Judge, item: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": judge(item)}
    except MemoryError:
        return {"exhausted": "memory limit reached"}
    except Exception as error:
        return {"failed": _describe(error)}


def _take_standard_output() -> BinaryIO:
    """The pipe to the parent; whatever a library prints goes to standard error instead."""
    replies = os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)
    return replies


def _allow_cpu(seconds: int) -> None:
    """Let the kernel end this process after ``seconds`` more, should the parent be gone and unable to."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + seconds)


def _limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    # some systems know a limit but refuse to set it; the parent's clock bounds every item all the same
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(what, (value, hard))


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _send(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
