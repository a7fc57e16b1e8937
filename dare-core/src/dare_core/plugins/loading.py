"""Loads every plugin on its own: a plugin registers as a whole or not at all, and fails alone."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, requires, version

import pluggy

from dare_core import builtin, hookspecs
from dare_core.components import Slot
from dare_core.hookspecs import DECLARATIONS, ENTRY_POINT_GROUP
from dare_core.official import is_official
from dare_core.plugins.checks import check_components, check_hooks
from dare_core.plugins.discovery import Candidate, Switches
from dare_core.plugins.report import PluginReport, PluginStatus, Registered, Rejected, one_line
from dare_core.plugins.requirements import check_core_bounds, missing_imports
from dare_core.plugins.tracing import trace_hooks

CORE = "dare-core"


@dataclass(frozen=True, kw_only=True)
class LoadedPlugins:
    """The outcome for all distributions.

    Attributes:
        manager: holds the usable plugins, for hook calls.
        reports: core's, then one per distribution, sorted by name.
        objects: distribution -> its plugin objects, for usable ones.
    """

    manager: pluggy.PluginManager
    reports: tuple[PluginReport, ...]
    objects: dict[str, tuple[object, ...]]


def load_plugins(candidates: Iterable[Candidate], switches: Switches) -> LoadedPlugins:
    """Load core's own components and all candidates. Raises nothing for a bad plugin."""
    manager = new_manager()
    core = Candidate(name=CORE, version=version(CORE), requires=tuple(requires(CORE) or ()), entry_points=())
    reports: list[PluginReport] = []
    objects: dict[str, tuple[object, ...]] = {}
    for candidate in (core, *(candidate for candidate in candidates if candidate.name != CORE)):
        declared: list[Registered] = []
        try:
            _check_before_import(candidate, switches, core.version)
            found = (builtin,) if candidate is core else tuple(_import(candidate, objects))
            _collect(candidate, found, declared)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            reports.append(_rejected(candidate, error, declared))
            continue
        for index, plugin in enumerate(found):
            manager.register(plugin, name=_plugin_name(candidate, index))
        objects[candidate.name] = found
        reports.append(_accepted(candidate, declared))
    return LoadedPlugins(manager=manager, reports=tuple(reports), objects=objects)


def new_manager() -> pluggy.PluginManager:
    """A plugin manager that knows this API's hooks."""
    manager = pluggy.PluginManager("dare")
    manager.add_hookspecs(hookspecs)
    trace_hooks(manager)
    return manager


def _plugin_name(candidate: Candidate, index: int) -> str:
    return candidate.name if index == 0 else f"{candidate.name}#{index + 1}"


def _check_before_import(candidate: Candidate, switches: Switches, core_version: str) -> None:
    reason = switches.reason(candidate.name)
    if reason and candidate.name != CORE:
        raise Rejected(PluginStatus.DISABLED, reason)
    if candidate.defect:
        raise Rejected(PluginStatus.INVALID, candidate.defect)
    if candidate.entry_points and not candidate.current:
        needed = " or ".join(candidate.groups)
        raise Rejected(
            PluginStatus.INCOMPATIBLE,
            f"needs plugin API {needed}, but dare-core {core_version} has {ENTRY_POINT_GROUP}",
        )
    check_core_bounds(candidate.requires, core_version)


def _import(candidate: Candidate, taken: dict[str, tuple[object, ...]]) -> Iterator[object]:
    """The plugin objects of a distribution, each once."""
    seen: list[object] = []
    for point in candidate.current:
        plugin = _import_entry_point(point, candidate)
        for owner, objects in taken.items():
            if any(plugin is other for other in objects):
                reason = f"entry point {point.name} = {point.value} names the plugin that {owner} already registered"
                raise Rejected(PluginStatus.INVALID, reason)
        if not any(plugin is other for other in seen):
            seen.append(plugin)
            yield plugin


def _import_entry_point(point: EntryPoint, candidate: Candidate) -> object:
    module_name, _, attributes = point.value.partition("[")[0].strip().partition(":")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            plugin: object = importlib.import_module(module_name.strip())
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            reason = f"stale metadata: its module {module_name} does not exist; reinstall or uninstall {candidate.name}"
            raise Rejected(PluginStatus.IMPORT_ERROR, reason) from error
        raise _import_failure(module_name, error) from error
    except BaseException as error:
        raise _import_failure(module_name, error) from error
    try:
        for attribute in attributes.strip().split(".") if attributes.strip() else ():
            plugin = getattr(plugin, attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = f"entry point {point.name} = {point.value}: {one_line(error)}"
        raise Rejected(PluginStatus.IMPORT_ERROR, reason) from error
    return plugin


def _import_failure(module_name: str, error: BaseException) -> Rejected:
    return Rejected(PluginStatus.IMPORT_ERROR, f"cannot import {module_name}: {one_line(error)}")


def _collect(candidate: Candidate, plugins: tuple[object, ...], declared: list[Registered]) -> None:
    """Check the plugins' hooks and append what they declare; on failure ``declared`` holds what came before it."""
    manager = new_manager()
    for index, plugin in enumerate(plugins):
        check_hooks(plugin, manager)
        manager.register(plugin, name=_plugin_name(candidate, index))
    manager.check_pending()
    seen: set[tuple[Slot, str]] = set()
    for hook, slot in DECLARATIONS.items():
        returned, failure = _call(manager, hook)
        for component in check_components(hook, slot, returned, seen):
            missing = missing_imports(component.requires, candidate.name, candidate.requires)
            declared.append(
                Registered(
                    component=component,
                    slot=slot,
                    distribution=candidate.name,
                    version=candidate.version,
                    missing=missing,
                )
            )
        if failure:
            raise failure


def _call(manager: pluggy.PluginManager, hook: str) -> tuple[list[object], Rejected | None]:
    """Call one declaration hook of one distribution: what it returned, and how it failed if it did."""
    caller = getattr(manager.hook, hook)
    returned: list[object] = []
    try:
        with contextlib.redirect_stdout(sys.stderr):
            results = caller()
            if len(results) < len(caller.get_hookimpls()):
                raise TypeError("returned None instead of components")
            for result in results:
                returned.extend(result)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return returned, Rejected(PluginStatus.INVALID, f"hook {hook} raised {one_line(error)}")
    return returned, None


def _accepted(candidate: Candidate, declared: list[Registered]) -> PluginReport:
    lacking = [
        f"{item.slot.noun} '{item.component.kind}' needs {missing.name} ({missing.install})"
        for item in declared
        for missing in item.missing
    ]
    return PluginReport(
        distribution=candidate.name,
        version=candidate.version,
        status=PluginStatus.DEGRADED if lacking else PluginStatus.OK,
        reason="; ".join(lacking),
        components=tuple(sorted(declared, key=lambda item: (item.slot, item.component.kind))),
        official=is_official(candidate.name),
    )


def _rejected(candidate: Candidate, error: BaseException, declared: list[Registered]) -> PluginReport:
    rejection = error if isinstance(error, Rejected) else Rejected(PluginStatus.INVALID, one_line(error))
    return PluginReport(
        distribution=candidate.name,
        version=candidate.version,
        status=rejection.status,
        reason=rejection.reason,
        withheld=tuple((item.slot, item.component.kind) for item in declared),
        official=is_official(candidate.name),
    )
