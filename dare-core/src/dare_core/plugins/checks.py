"""Whether a plugin keeps the contract: hook names, hook arguments, component records."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache

import pluggy

from dare_core import hookspecs
from dare_core.capabilities import VOCABULARY, unknown_words
from dare_core.commands import COMMANDS
from dare_core.components import Component, Slot
from dare_core.hookspecs import ENTRY_POINT_GROUP
from dare_core.plugins.report import PluginStatus, Rejected


@cache
def hook_arguments() -> dict[str, tuple[str, ...]]:
    """Hook name -> argument names, of this plugin API."""
    return {
        name: tuple(inspect.signature(function).parameters)
        for name, function in vars(hookspecs).items()
        if inspect.isfunction(function) and hasattr(function, "dare_spec")
    }


def check_hooks(plugin: object, manager: pluggy.PluginManager) -> None:
    """Compare the hooks that a plugin object implements with the specs.

    Names that start with ``dare_`` are reserved for hooks, so that a forgotten marker or a misspelt name is found.

    Raises:
        Rejected: the first thing that is wrong.
    """
    if inspect.isclass(plugin):
        raise Rejected(PluginStatus.INVALID, f"entry point names the class {plugin.__name__}; name a module")
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            _check_unmarked(plugin, name)
            continue
        hook = options["specname"] or name
        if options["hookwrapper"] or options["wrapper"]:
            raise Rejected(PluginStatus.INVALID, f"hook {name} is a wrapper; hooks declare and observe only")
        if hook in hook_arguments():
            _check_arguments(hook, getattr(plugin, name))
        elif not options["optionalhook"]:
            raise _unknown_hook(hook)


def _check_unmarked(plugin: object, name: str) -> None:
    function = getattr(plugin, name, None)
    if not name.startswith("dare_") or not inspect.isroutine(function):
        return
    if name in hook_arguments():
        raise Rejected(PluginStatus.INVALID, f"hook {name} lacks the @hookimpl marker")
    if getattr(function, "__module__", None) == getattr(plugin, "__name__", type(plugin).__module__):
        raise _unknown_hook(name)


def _unknown_hook(name: str) -> Rejected:
    near = get_close_matches(name, hook_arguments(), n=1)
    advice = f"; did you mean {near[0]}?" if near else ""
    return Rejected(PluginStatus.INCOMPATIBLE, f"hook {name} does not exist in plugin API {ENTRY_POINT_GROUP}{advice}")


def _check_arguments(hook: str, function: object) -> None:
    if not callable(function):
        return
    wanted = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    extra = [name for name in wanted if name not in hook_arguments()[hook]]
    if extra:
        given = ", ".join(hook_arguments()[hook]) or "no arguments"
        raise Rejected(
            PluginStatus.INCOMPATIBLE,
            f"hook {hook} asks for {', '.join(extra)}; plugin API {ENTRY_POINT_GROUP} passes {given}",
        )


def check_components(hook: str, slot: Slot, declared: Iterable[object], seen: set[tuple[Slot, str]]) -> list[Component]:
    """Check what one declaration hook returned; adds to ``seen``, the kinds of this distribution.

    Raises:
        Rejected: a record is malformed or repeated.
    """
    components = []
    for component in declared:
        if not isinstance(component, Component):
            raise Rejected(PluginStatus.INVALID, f"hook {hook} returned a {type(component).__name__}, not a Component")
        if (slot, component.kind) in seen:
            raise Rejected(PluginStatus.INVALID, f"declares {slot.noun} '{component.kind}' twice")
        _check_record(slot, component)
        seen.add((slot, component.kind))
        components.append(component)
    return components


def _check_record(slot: Slot, component: Component) -> None:
    name = f"{slot.noun} '{component.kind}'"
    unknown = unknown_words(component.provides | component.needs)
    if unknown:
        near = get_close_matches(unknown[0], VOCABULARY, n=1)
        advice = f"; did you mean '{near[0]}'?" if near else ""
        words = ", ".join(f"'{word}'" for word in unknown)
        raise Rejected(PluginStatus.INVALID, f"{name}: unknown capability {words}{advice}")
    for word in sorted(component.provides):
        owner = VOCABULARY[word][0]
        if owner is not slot:
            raise Rejected(PluginStatus.INVALID, f"{name}: '{word}' can be provided by a {owner.noun} only")
    if slot is Slot.COMMAND and component.kind in COMMANDS:
        raise Rejected(PluginStatus.INVALID, f"command '{component.kind}' is one of dare's own")
    if slot is not Slot.COMMAND and not component.config:
        raise Rejected(PluginStatus.INVALID, f"{name}: names no config class")
