"""Finds golden cases and the handler that checks each.

A case is known by what its case.json says (group, kind, topic, needed_by), never by its folder's name, so
the same handlers check other seeds and sizes of the same form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_core.testing.goldens import GoldenCase, find_cases

#: (needed_by, group, beginning of the topic) of cases whose work is not built yet -> why they are skipped
NOT_BUILT: dict[tuple[str, str, str], str] = {}

Check = Callable[[GoldenCase], None]


@dataclass(frozen=True)
class Handler:
    """A check and the cases it is for."""

    group: str
    kind: str
    topic: str
    fields: dict[str, Any]
    check: Check

    def matches(self, case: GoldenCase) -> bool:
        return (
            case.group == self.group
            and case.kind == self.kind
            and case.topic.startswith(self.topic)
            and all(case.spec.get(key) == value for key, value in self.fields.items())
        )


HANDLERS: list[Handler] = []


def golden(group: str, kind: str, topic: str = "", **fields: Any) -> Callable[[Check], Check]:
    """Register a check for cases of ``group`` and ``kind`` whose topic starts with ``topic`` and whose
    case.json has the given further fields (``decoder="llada_semi_ar"``)."""

    def register(check: Check) -> Check:
        HANDLERS.append(Handler(group, kind, topic, fields, check))
        return check

    return register


def handler_for(case: GoldenCase) -> Handler | None:
    """The one handler of a case, or None.

    Raises:
        LookupError: several handlers claim the case.
    """
    found = [handler for handler in HANDLERS if handler.matches(case)]
    if len(found) > 1:
        names = ", ".join(handler.check.__name__ for handler in found)
        raise LookupError(f"{case.group}/{case.id} is claimed by {names}; narrow their topics")
    return found[0] if found else None


def not_built(case: GoldenCase) -> str | None:
    """Why a case that nothing handles is skipped, or None."""
    for (needed_by, group, topic), reason in NOT_BUILT.items():
        if (case.needed_by, case.group) == (needed_by, group) and case.topic.startswith(topic):
            return reason
    return None


def cases(root: Path, needed_by: str | None) -> list[GoldenCase]:
    """All cases below ``root``, those of one ``needed_by`` word if given, in folder order."""
    return [case for case in find_cases(root) if needed_by in (None, case.needed_by)]
