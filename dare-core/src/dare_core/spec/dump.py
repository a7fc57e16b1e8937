"""A resolved plan as plain data, and what gave each of its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from dare_core.components import Slot
from dare_core.spec.merge import LIST_SECTIONS
from dare_core.spec.nodes import Node
from dare_core.spec.plan import Choice, Origin, RunPlan
from dare_core.spec.selection import Selection
from dare_core.spec.slots import SlotOptions

SINGLE_SECTIONS = ("model", "data", "rollout", "reward", "likelihood", "algorithm", "engine")


def resolved_data(plan: RunPlan) -> dict[str, Any]:
    """Every value of the plan under its section, in the order of specs; resolving it again gives the same plan."""
    data: dict[str, Any] = {"dare": 1, "run": plan.run.model_dump(mode="json")}
    for name in SINGLE_SECTIONS:
        if Slot(name) in plan:
            data[name] = choice_data(plan[Slot(name)])
    data["optim"] = plan.optim.model_dump(mode="json")
    data["peft"] = plan.peft.model_dump(mode="json") if plan.peft is not None else None
    data["eval"] = [choice_data(choice) for choice in plan.evals]
    data["trackers"] = [choice_data(choice) for choice in plan.trackers]
    return data


def choice_data(choice: Choice) -> dict[str, Any]:
    """A component's section: its kind and every option, nested components as a spec writes them."""
    return {"kind": choice.name, **_options(choice.config)}


def _options(config: BaseModel) -> dict[str, Any]:
    data: dict[str, Any] = {}
    plain = config.model_dump(mode="json")
    for name, info in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, Choice) and any(isinstance(m, SlotOptions) and m.inline for m in info.metadata):
            data |= choice_data(value)
        else:
            data[name] = _value(value, plain[name])
    return data


def _value(value: Any, plain: Any) -> Any:
    """``plain``, with components and what may hold them written as in a spec."""
    if isinstance(value, Choice):
        return choice_data(value)
    if isinstance(value, BaseModel):
        return _options(value)
    if isinstance(value, (list, tuple)):
        return [_value(item, shown) for item, shown in zip(value, plain, strict=True)]
    return plain


def leaves(data: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of every scalar, empty list and empty mapping."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(data, list) and data:
        for index, value in enumerate(data):
            yield from leaves(value, (*path, str(index)))
    else:
        yield path, data


def origins_of(resolved: Mapping[str, Any], selection: Selection, filled: Mapping[str, Node]) -> dict[str, Origin]:
    """What gave each leaf of ``resolved``.

    Args:
        resolved: the plan's data.
        selection: the merged spec and the kinds chosen.
        filled: path -> merged options of components that are no section of their own.
    """
    origins: dict[str, Origin] = {}
    for parts, _ in leaves(resolved):
        path = ".".join(parts)
        node = _node_at(parts, selection.root, filled)
        if node is None and len(parts) == 2 and parts[1] == "kind":
            node = next((kind for slot, kind in selection.kinds.items() if str(slot) == parts[0]), None)
        origins[path] = node.origin if node is not None else Origin(source="default", where=_owner(parts, resolved))
    return origins


def _node_at(parts: tuple[str, ...], root: Node, filled: Mapping[str, Node]) -> Node | None:
    """The node that gave a leaf: in the innermost component around it, or in the spec."""
    spellings = [parts]
    if parts[0] in LIST_SECTIONS and parts[1:2] == ("0",):
        spellings.append((parts[0], *parts[2:]))
    for spelling in spellings:
        for length in range(len(spelling) - 1, 0, -1):
            component = filled.get(".".join(spelling[:length]))
            found = component.get(spelling[length:]) if component is not None else None
            if found is not None:
                return found
        found = root.get(spelling)
        if found is not None:
            return found
    return None


def _owner(parts: tuple[str, ...], resolved: Mapping[str, Any]) -> str:
    section = resolved[parts[0]]
    if isinstance(section, Mapping) and parts[0] in SINGLE_SECTIONS:
        return str(section.get("kind", parts[0]))
    return parts[0]
