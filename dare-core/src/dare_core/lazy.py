"""Resolves ``"package.module:Name"`` strings of components, and checks what they name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, cast

from dare_core.api import SectionConfig
from dare_core.components import Slot
from dare_core.errors import PluginError
from dare_core.plugins.report import Registered, one_line

#: slot -> name in dare_core.spec.sections of the base that its config class extends
_SECTION_BASES = {
    Slot.MODEL: "ModelSection",
    Slot.DATA: "DataSection",
    Slot.ROLLOUT: "RolloutSection",
    Slot.ALGORITHM: "AlgorithmSection",
    Slot.ENGINE: "EngineSection",
    Slot.EVALUATOR: "EvaluatorSection",
}
#: slot -> name in dare_core.interfaces of what its target implements
_INTERFACES = {
    Slot.MODEL: "ModelAdapter",
    Slot.DATA: "DataSource",
    Slot.ROLLOUT: "RolloutBackend",
    Slot.REWARD: "Reward",
    Slot.LIKELIHOOD: "LikelihoodEstimator",
    Slot.ALGORITHM: "Algorithm",
    Slot.ENGINE: "Engine",
    Slot.EVALUATOR: "Evaluator",
    Slot.TRACKER: "Tracker",
}


def import_object(registered: Registered, reference: str) -> Any:
    """The object that ``reference`` names.

    Raises:
        PluginError: importing fails or the name does not exist.
    """
    module_name, _, attributes = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except Exception as error:
        raise PluginError(f"{_who(registered)}: cannot load {reference}: {one_line(error)}") from error
    return found


def check_config_class(found: Any, registered: Registered) -> type[SectionConfig]:
    """Whether a section class extends its slot's base and stays strict.

    Raises:
        PluginError: it does not.
    """
    from dare_core.spec import sections

    base_name = _SECTION_BASES.get(registered.slot)
    base: type[SectionConfig] = getattr(sections, base_name) if base_name else SectionConfig
    reference = registered.component.config
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise PluginError(f"{_who(registered)}: config {reference} must be a subclass of {base.__name__}")
    if found.model_config.get("extra") != "forbid" or not found.model_config.get("frozen"):
        raise PluginError(f"{_who(registered)}: config {reference} must forbid unknown keys and be frozen")
    return found


def check_target_class(found: Any, registered: Registered) -> type:
    """Whether a target implements its slot's interface completely.

    Raises:
        PluginError: it does not; names the missing methods.
    """
    from dare_core import interfaces

    reference = registered.component.target
    base: type = getattr(interfaces, _INTERFACES[registered.slot])
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise PluginError(f"{_who(registered)}: target {reference} must be a subclass of {base.__name__}")
    lacking = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
    if lacking:
        raise PluginError(f"{_who(registered)}: target {reference} lacks {lacking} of {base.__name__}")
    return found


def check_command(found: Any, registered: Registered) -> Callable[[list[str]], int]:
    """Whether the target of a command can be called.

    Raises:
        PluginError: it cannot.
    """
    if not callable(found):
        raise PluginError(f"{_who(registered)}: target {registered.component.target} must be callable")
    return cast("Callable[[list[str]], int]", found)


def _who(registered: Registered) -> str:
    return f"{registered.slot.noun} '{registered.component.kind}' of {registered.distribution} {registered.version}"
