"""What to say when a kind cannot be used: unknown, ambiguous, broken, or lacking an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from packaging.utils import canonicalize_name

from dare_core.commands import COMMANDS
from dare_core.components import Slot
from dare_core.errors import Problem
from dare_core.official import OFFICIAL, official_kinds
from dare_core.plugins.report import PluginReport, Registered


def ambiguous(slot: Slot, name: str, found: Sequence[Registered]) -> Problem:
    """Several distributions offer one kind."""
    owners = " and ".join(f"{item.distribution} {item.version}" for item in found)
    forms = " or ".join(f"'kind: {item.qualified}'" for item in found)
    return Problem(f"{slot.noun} '{name}' is offered by {owners}", hint=f"write {forms}")


def broken(slot: Slot, kind: str, owner: str | None, reports: Sequence[PluginReport]) -> Problem | None:
    """The kind belongs to a plugin that is installed but not usable; None if no such plugin is known."""
    for report in reports:
        if report.usable or owner not in (None, report.distribution):
            continue
        official = OFFICIAL.get(report.distribution, {}).get(slot, ())
        if owner or kind in official or (slot, kind) in report.withheld:
            return Problem(
                f"{slot.noun} '{kind}' cannot be used: its plugin {report.distribution} {report.version} is not loaded",
                hint=f"{report.status}: {report.reason}",
            )
    return None


def unknown(slot: Slot, name: str, installed: Sequence[Registered], reports: Sequence[PluginReport]) -> Problem:
    """Nobody offers the kind: near names, the official package to install, and plugins that did not load."""
    owner, _, kind = name.rpartition(":")
    own = COMMANDS if slot is Slot.COMMAND else ()
    known = list(dict.fromkeys([*own, *(item.component.kind for item in installed)]))
    present = {report.distribution: report.version for report in reports}
    hints = [_owner_hint(owner, kind, installed, present) if owner else _kind_hint(slot, kind, known, present)]
    hints.append(f"installed: {', '.join(known) or 'none'}")
    failed = [f"{report.distribution} {report.version} ({report.status})" for report in reports if not report.usable]
    if failed:
        hints.append(f"not loaded: {', '.join(failed)}, see 'dare plugins list'")
    return Problem(f"unknown {slot.noun} '{name}'", hint="; ".join(hint for hint in hints if hint))


def _owner_hint(owner: str, kind: str, installed: Sequence[Registered], present: Mapping[str, str]) -> str:
    """For ``distribution:kind``: what the distribution has, or who else has the kind."""
    distribution = canonicalize_name(owner)
    others = [item.qualified for item in installed if item.component.kind == kind]
    elsewhere = f", but there is {' and '.join(others)}" if others else ""
    if distribution in present:
        return f"{distribution} {present[distribution]} does not offer it{elsewhere}"
    remedy = f": pip install {distribution}" if distribution in OFFICIAL else ""
    return f"{distribution} is not installed{remedy or elsewhere}"


def _kind_hint(slot: Slot, kind: str, known: Sequence[str], present: Mapping[str, str]) -> str:
    """For a bare kind: its official package, or near names."""
    packages = official_kinds(slot)
    if kind in packages:
        package = packages[kind]
        if package in present:
            return f"{package} {present[package]} does not offer it; pip install --upgrade {package}"
        return f"it is part of {package}, which is not installed: pip install {package}"
    names = []
    for near in get_close_matches(kind, dict.fromkeys([*known, *packages]), n=3):
        if near in known:
            names.append(f"'{near}'")
        else:
            verb = "of" if packages[near] in present else "pip install"
            names.append(f"'{near}' ({verb} {packages[near]})")
    return f"did you mean {' or '.join(names)}?" if names else ""


def missing_requirements(registered: Registered) -> list[Problem]:
    """Required imports that are not installed."""
    return [
        Problem(
            f"{registered.slot.noun} '{registered.component.kind}' of {registered.distribution} needs "
            f"{missing.name}, which is not installed",
            hint=missing.install,
        )
        for missing in registered.missing
    ]
