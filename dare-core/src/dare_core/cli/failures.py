"""How failures are told: every problem on its own line on stderr, or as JSON on stdout, and an exit code."""

from __future__ import annotations

import sys
import traceback as tracebacks
from collections.abc import Iterable
from dataclasses import asdict

from dare_core.cli.context import emit
from dare_core.errors import DareError, UserError
from dare_core.plugins.report import PluginReport, one_line


def tell(error: BaseException, *, as_json: bool, traceback: bool) -> int:
    """Show an error to a person or a program.

    Returns:
        the exit code: 2 for wrong input, 130 for an interrupt, otherwise 1.
    """
    if traceback:
        sys.stderr.write("".join(tracebacks.format_exception(error)))
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return 130
    if isinstance(error, UserError):
        if as_json:
            emit({"problems": [asdict(problem) for problem in error.problems]})
        else:
            sys.stderr.write("".join(f"{problem}\n" for problem in error.problems))
    elif isinstance(error, DareError):
        if as_json:
            emit({"error": str(error)})
        sys.stderr.write(f"{error}\n")
    else:
        advice = "" if traceback else "; run with --traceback (dare --traceback ...) to see where"
        sys.stderr.write(f"unexpected {one_line(error)}{advice}\n")
    return error.exit_code if isinstance(error, DareError) else 1


def report_faulty(reports: Iterable[PluginReport]) -> bool:
    """Name every plugin that strict mode refuses, on stderr; whether there was one."""
    faulty = [report for report in reports if report.faulty]
    sys.stderr.write("".join(f"{report}\n" for report in faulty))
    return bool(faulty)
