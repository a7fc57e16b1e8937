"""Interrupts: the first signal lets the current step finish, the second one ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Watches for SIGINT and SIGTERM while the context is open; outside the main thread it never sees one.

    Attributes:
        signal: the signal received, or None.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number: 130 for SIGINT, 143 for SIGTERM; 0 without one."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        # Not sys.stderr: the signal may arrive in the middle of a write to it, which cannot be entered twice.
        os.write(2, f"\n{self.signal.name}: finishing this step and saving; once more ends at once, unsaved\n".encode())
