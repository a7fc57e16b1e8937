"""Layers of a spec laid over each other: files, ``--set`` values, presets and components' wishes.

Mappings merge deep; lists and scalars of the higher layer replace. Two more rules keep sections meaningful:

- A higher layer that changes a section's ``kind`` drops what lower layers gave the old kind. What belongs to no kind
  (:data:`SHARED`) stays: the rows of ``data``, the decoding protocol of ``rollout``, the device of ``model``.
- Where options exclude each other (:data:`ALTERNATIVES`), a higher layer that names one drops the lower layer's other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dare_core.components import Slot
from dare_core.errors import Problem
from dare_core.spec.nodes import Node, described, read_text
from dare_core.spec.plan import Origin
from dare_core.spec.sections import DataSection, RolloutSection

#: section -> options that survive a change of kind; for ``peft`` every option does
SHARED: Mapping[str, frozenset[str]] = {
    "model": frozenset({"dtype", "device", "attention"}),
    "data": frozenset(DataSection.model_fields),
    "rollout": frozenset(RolloutSection.model_fields),
}
#: section -> groups of options of which only one group can be meant
ALTERNATIVES: Mapping[str, tuple[frozenset[str], ...]] = {
    "model": (frozenset({"path"}), frozenset({"config", "init"})),
    "data": (frozenset({"prompt"}), frozenset({"messages"})),
    "rollout": (frozenset({"steps_total"}), frozenset({"steps_per_block"})),
}
SLOT_SECTIONS = tuple(str(slot) for slot in Slot if slot is not Slot.COMMAND)
LIST_SECTIONS = (str(Slot.EVALUATOR), str(Slot.TRACKER))


def merged(low: Node, high: Node) -> Node:
    """The spec ``high`` laid over the spec ``low``."""
    entries = dict(low.entries)
    for name, section in high.entries.items():
        entries[name] = merged_section(name, entries[name], section) if name in entries else section
    return Node(entries, _place_of_both(low, high))


def merged_section(name: str, low: Node, high: Node) -> Node:
    """One section laid over another; ``name`` tells which options survive a change of kind."""
    if not isinstance(low.value, Mapping) or not isinstance(high.value, Mapping):
        return high
    kept = _without_alternatives(name, of_kind(name, low, high.entries.get("kind")), high)
    for key, value in high.entries.items():
        below = kept.get(key)
        kept[key] = value if below is None else merged_section(key, below, value)
    return Node(kept, _place_of_both(low, high))


def _place_of_both(low: Node, high: Node) -> Origin:
    """Where people look for a merged section: the first file that has it."""
    return low.origin if low.origin.source in ("spec", "overlay") else high.origin


def of_kind(name: str, section: Node, kind: Node | None) -> dict[str, Node]:
    """The entries of ``section`` that make sense for ``kind``: all, unless the section names another kind."""
    own = section.entries.get("kind")
    if name == "peft" or kind is None or own is None or same_kind(own.value, kind.value):
        return dict(section.entries)
    return {key: node for key, node in section.entries.items() if key in SHARED.get(name, ())}


def same_kind(one: object, other: object) -> bool:
    """Whether two names (``kind`` or ``distribution:kind``) can mean the same component."""
    if one == other:
        return True
    if not isinstance(one, str) or not isinstance(other, str) or (":" in one and ":" in other):
        return False
    return one.rpartition(":")[2] == other.rpartition(":")[2]


def _without_alternatives(name: str, low: dict[str, Node], high: Node) -> dict[str, Node]:
    groups = ALTERNATIVES.get(name, ())
    named = [group for group in groups if any(high.entries[key].value is not None for key in group & set(high.entries))]
    if len(named) != 1:
        return low
    others = {key for group in groups if group is not named[0] for key in group}
    return {key: node for key, node in low.items() if key not in others}


def with_kinds_spelled_out(root: Node) -> Node:
    """``algorithm: d1`` as ``algorithm: {kind: d1}``, for every slot and every item of ``eval`` and ``trackers``."""
    entries = dict(root.entries)
    for name in SLOT_SECTIONS:
        node = entries.get(name)
        if node is not None and name in LIST_SECTIONS and isinstance(node.value, tuple):
            entries[name] = Node(tuple(spelled_out(item) for item in node.value), node.origin)
        elif node is not None:
            entries[name] = spelled_out(node)
    return Node(entries, root.origin)


def spelled_out(node: Node) -> Node:
    """A component's kind alone, as a mapping."""
    return Node({"kind": node}, node.origin) if isinstance(node.value, str) else node


def with_sets(root: Node, sets: Sequence[str]) -> tuple[Node, list[Problem]]:
    """``--set path=value`` laid over the merged files, kinds first, so that options belong to the new kind.

    Args:
        root: the merged files.
        sets: ``path=value``; the value is YAML, and a number in the path picks from a list.
    """
    problems: list[Problem] = []
    parsed: list[tuple[list[str], Node]] = []
    for text in sets:
        path, equals, value = text.partition("=")
        place = f"--set {text}"
        parts = path.strip().split(".")
        if not equals or not all(parts):
            hint = "write it as path=value, e.g. optim.lr=1e-6"
            problems.append(Problem("is not a dotted path, '=' and a value", where=place, hint=hint))
            continue
        node, found = read_text(value, place, "command line", lines=False)
        problems += found
        if not found:
            parsed.append((parts, node or Node(None, Origin(source="command line", where=place))))
    for parts, node in sorted(parsed, key=lambda item: not _names_kind(*item)):
        root, problem = _with_value(root, parts, node)
        problems += [problem] if problem else []
    return root, problems


def _names_kind(parts: Sequence[str], node: Node) -> bool:
    return parts[-1] == "kind" or (len(parts) == 1 and isinstance(node.value, str))


def _with_value(root: Node, parts: Sequence[str], value: Node) -> tuple[Node, Problem | None]:
    """``root`` with ``value`` at ``parts``, merged like an overlay; a list with one item changed replaces the list."""
    section = root.entries.get(parts[0])
    if section is not None and parts[0] in LIST_SECTIONS and section.entries and parts[1:2] == ["0"]:
        parts = [parts[0], *parts[2:]]
    if section is None or len(parts) == 1:
        changed = _nested(parts[1:], value)
    else:
        try:
            changed = _within(parts[0], section, parts[1:], value)
        except _BadPathError as error:
            path = ".".join(parts)
            return root, Problem(str(error), path=path, where=value.where)
    layer = with_kinds_spelled_out(Node({parts[0]: changed}, value.origin))
    return merged(root, layer), None


class _BadPathError(Exception):
    """A path does not lead anywhere."""


def _nested(parts: Sequence[str], value: Node) -> Node:
    for part in reversed(parts):
        value = Node({part: value}, value.origin)
    return value


def _within(name: str, below: Node, parts: Sequence[str], value: Node) -> Node:
    """What the layer holds in place of ``below``: lists whole, with one item changed; mappings in part."""
    if not parts:
        return value
    if not isinstance(below.value, tuple):
        inner = below.entries.get(parts[0])
        changed = _nested(parts[1:], value) if inner is None else _within(parts[0], inner, parts[1:], value)
        return Node({parts[0]: changed}, value.origin)
    items = list(below.value)
    allowed = f"0..{len(items) - 1}" if items else "none: the list is empty"
    if not parts[0].isdecimal() or int(parts[0]) >= len(items):
        raise _BadPathError(f"{parts[0]!r} is no position in {described(below)} of {name!r}; positions: {allowed}")
    index = int(parts[0])
    changed = _within(name, items[index], parts[1:], value)
    if "kind" in items[index].entries:
        changed = spelled_out(changed)
    items[index] = merged_section(name, items[index], changed)
    return Node(tuple(items), below.origin)
