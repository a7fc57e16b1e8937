"""``DARE_TRACE_HOOKS=1``: every hook call with its arguments and results, on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pluggy

TRACE_VARIABLE = "DARE_TRACE_HOOKS"


def trace_hooks(manager: pluggy.PluginManager) -> None:
    """Report all later hook calls of ``manager`` if the environment asks for it."""
    if os.environ.get(TRACE_VARIABLE, "") not in ("", "0"):
        manager.add_hookcall_monitoring(_before, _after)


def _before(name: str, implementations: Sequence[pluggy.HookImpl], arguments: Mapping[str, Any]) -> None:
    if not implementations:
        return
    shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    plugins = ", ".join(implementation.plugin_name for implementation in implementations)
    sys.stderr.write(f"hook {name}({shown}) -> {plugins}\n")


def _after(
    outcome: pluggy.Result[Any], name: str, implementations: Sequence[pluggy.HookImpl], arguments: Mapping[str, Any]
) -> None:
    if not implementations:
        return
    result = repr(outcome.exception) if outcome.exception else repr(outcome.get_result())
    sys.stderr.write(f"hook {name} returned {result}\n")
