"""Regular expressions with a time limit, in a process of their own.

A pattern may need exponential time on unlucky text, and Python's ``re`` can neither be stopped nor shares the
interpreter while it runs, so a thread or signal would not do. The process reads a JSON list ``[pattern, last, text]``
per line and answers with a JSON string or null; it is killed when an answer is late, and the next one starts afresh.
"""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
import threading


class RegexTimeoutError(Exception):
    """The pattern did not finish in time."""


class RegexProcess:
    """Searches in a child process, from any thread.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def find(self, pattern: str, text: str, last: bool, seconds: float) -> str | None:
        """The group of the first or last match, or None.

        Raises:
            RegexTimeoutError: it took longer than ``seconds``; the process is gone then.
            OSError: the process died or could not be started.
        """
        request = json.dumps([pattern, last, text]).encode() + b"\n"
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(request)
                process.stdin.flush()
                # One answer per question is in flight, so nothing waits in the reader's buffer when select looks.
                ready, _, _ = select.select([process.stdout], [], [], seconds)
                answer = process.stdout.readline() if ready else None
            except BaseException:
                self._stop()
                raise
            if answer is None:
                self._stop()
                raise RegexTimeoutError
            if not answer:
                self._stop()
                raise OSError("the process that searches ended")
            found: str | None = json.loads(answer)
            return found

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            # -S and -I: standard library only, so it starts fast and nothing of the user's is imported.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            # The start of the interpreter is not the pattern's time.
            assert self._process.stdout is not None
            self._process.stdout.readline()
        return self._process

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None


def group_of_match(pattern: str, text: str, last: bool) -> str | None:
    """The group of the first or last match, or None where nothing matches or the group took no part."""
    found = None
    for match in re.finditer(pattern, text):
        found = match[1]
        if not last:
            break
    return found


def _serve() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        pattern, last, text = json.loads(line)
        sys.stdout.write(json.dumps(group_of_match(pattern, text, last)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
