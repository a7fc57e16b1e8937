"""What presets and components' wishes give a spec, as layers below what people write.

From high to low: presets, then wishes (``Component.defaults``); of each, the algorithm's first, then those of the
likelihood, model, rollout, reward, data and engine. A layer's options for another section count only if that section
ends up with the kind they are meant for. A wish that the chosen kind has no option for is void; a preset, being asked
for, must fit. Wishes of others for block length and steps are void where the model is a block model: it has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from dare_core.catalog import Registered
from dare_core.components import Slot
from dare_core.errors import Problem
from dare_core.spec.merge import merged_section, of_kind
from dare_core.spec.nodes import Node, described, node_of
from dare_core.spec.plan import Origin
from dare_core.spec.problems import did_you_mean

#: slots with one component each, in the order in which their wishes count
SINGLE_SLOTS = (
    Slot.ALGORITHM,
    Slot.LIKELIHOOD,
    Slot.MODEL,
    Slot.ROLLOUT,
    Slot.REWARD,
    Slot.DATA,
    Slot.ENGINE,
)
#: sections that a layer may reach
REACHED = frozenset({"run", "optim", "peft", *(str(slot) for slot in SINGLE_SLOTS)})


#: decoding lengths that block models have of their own
_LENGTHS = ("rollout.block_length", "rollout.steps_total", "rollout.steps_per_block")


@dataclass(frozen=True)
class Layer:
    """Options for several sections from one giver.

    Attributes:
        sections: section -> options, or null where the section is left out.
        kinds: section -> the kind its options are meant for; absent = any.
        preset: whether people asked for it.
    """

    sections: Mapping[str, Node]
    kinds: Mapping[str, Node]
    preset: bool

    def section(self, name: str, kind: Node | None) -> Node | None:
        """What this layer gives a section of the given kind."""
        node = self.sections.get(name)
        if node is None or not isinstance(node.value, Mapping):
            return node
        meant = self.kinds.get(name)
        entries = dict(node.entries)
        if meant is not None and "kind" not in entries:
            entries["kind"] = meant
        fitting = of_kind(name, Node(entries, node.origin), kind)
        if meant is not None and "kind" not in node.entries:
            fitting.pop("kind", None)
        return Node(fitting, node.origin) if fitting else None


def layers_of(picked: Mapping[Slot, Registered], user: Node, problems: list[Problem]) -> list[Layer]:
    """All layers of the chosen components, lowest first.

    Args:
        picked: the components chosen so far.
        user: what people wrote, for ``preset`` keys.
        problems: unknown presets and unreachable paths are added here.
    """
    presets: list[Layer] = []
    wishes: list[Layer] = []
    model = picked.get(Slot.MODEL)
    in_blocks = model is not None and "block" in model.component.provides
    for slot in SINGLE_SLOTS:
        registered = picked.get(slot)
        if registered is None:
            continue
        name = registered.component.kind
        defaults = registered.component.defaults
        section = user.entries.get(str(slot)) or Node({}, user.origin)
        chosen = chosen_preset(registered, section, str(slot), problems)
        if chosen is not None:
            place = section.entries["preset"].where
            origin = Origin(source="preset", where=f"{section.entries['preset'].value} of {name}")
            layer = _layer(slot, chosen, defaults, origin, preset=True)
            problems += _unreachable(layer, registered, place)
            presets.append(layer)
        wished = defaults if slot is Slot.MODEL or not in_blocks else _without_lengths(defaults)
        layer = _layer(slot, wished, defaults, Origin(source=str(slot), where=name), preset=False)
        problems += _unreachable(layer, registered, section.where)
        wishes.append(layer)
    return [*reversed(wishes), *reversed(presets)]


def _without_lengths(wishes: Mapping[str, Any]) -> Mapping[str, Any]:
    return {path: value for path, value in wishes.items() if path not in _LENGTHS}


def own_layers(slot: Slot, registered: Registered, section: Node, path: str, problems: list[Problem]) -> list[Node]:
    """What a component that is not a section of its own gives itself, lowest first.

    Its wishes for other sections are void: several such components would contradict each other.
    """
    name = registered.component.kind
    own = str(slot)
    found: list[Node] = []
    wish = _layer(slot, registered.component.defaults, {}, Origin(source=own, where=name), preset=False)
    chosen = chosen_preset(registered, section, path, problems)
    layers = [wish]
    if chosen is not None:
        node = section.entries["preset"]
        preset = _layer(slot, chosen, {}, Origin(source="preset", where=f"{node.value} of {name}"), preset=True)
        others = sorted(set(preset.sections) - {own})
        if others:
            message = f"preset '{node.value}' of '{name}' reaches {', '.join(others)}, which it may not from here"
            problems.append(Problem(message, f"{path}.preset", node.where))
        layers.append(preset)
    for layer in layers:
        if own in layer.sections:
            found.append(layer.sections[own])
    return found


def laid_out(
    layers: list[Layer], user: Node, names: Iterable[str], models: Mapping[str, type[BaseModel]] | None = None
) -> Node:
    """The spec with all layers below what people wrote.

    Args:
        layers: lowest first.
        user: what people wrote; nulls for options without a null already taken out.
        names: sections that may exist.
        models: section -> config class of its kind; wishes for options that it lacks are void.
    """
    entries: dict[str, Node] = {}
    for name in names:
        written = user.entries.get(name)
        kind = _kind(name, layers, written)
        node: Node | None = None
        for layer in layers:
            above = layer.section(name, kind)
            if above is not None and not layer.preset and models is not None and name in models:
                above = _fitting(above, models[name])
            if above is not None:
                node = above if node is None else merged_section(name, node, above)
        if written is not None:
            node = written if node is None else merged_section(name, node, written)
        if node is not None:
            unplaced = node.where is None and isinstance(node.value, Mapping)
            entries[name] = Node(node.value, user.origin) if unplaced else node
    return Node(entries, user.origin)


def chosen_preset(
    registered: Registered, section: Node, path: str, problems: list[Problem]
) -> Mapping[str, Any] | None:
    """The preset that a section asks for by ``preset: name``."""
    node = section.entries.get("preset")
    if node is None or node.value is None:
        return None
    presets = registered.component.presets
    if isinstance(node.value, str) and node.value in presets:
        return presets[node.value]
    kind = registered.component.kind
    if isinstance(node.value, str):
        hint = did_you_mean(node.value, sorted(presets), what="its presets")
        problem = Problem(f"unknown preset '{node.value}' of '{kind}'", f"{path}.preset", node.where, hint)
    else:
        problem = Problem(f"must be the name of a preset, not {described(node)}", f"{path}.preset", node.where)
    problems.append(problem)
    return None


def _fitting(section: Node, model: type[BaseModel]) -> Node | None:
    known = {*model.model_fields, "kind"}
    entries = {key: node for key, node in section.entries.items() if key in known}
    return Node(entries, section.origin) if entries or not section.entries else None


def _kind(name: str, layers: list[Layer], written: Node | None) -> Node | None:
    """The kind that the highest layer gives a section."""
    if written is not None and written.entries.get("kind") is not None:
        return written.entries["kind"]
    for layer in reversed(layers):
        node = layer.sections.get(name)
        if node is not None and "kind" in node.entries:
            return node.entries["kind"]
    return None


def _layer(slot: Slot, paths: Mapping[str, Any], defaults: Mapping[str, Any], origin: Origin, *, preset: bool) -> Layer:
    sections: dict[str, Node] = {}
    for path, value in paths.items():
        name, *parts = path.split(".")
        if [name, *parts] == [str(slot), "kind"]:
            continue
        node = node_of(value, origin)
        for part in reversed(parts):
            node = Node({part: node}, origin)
        sections[name] = merged_section("peft", sections[name], node) if name in sections else node
    kinds: dict[str, Node] = {}
    for name in sections:
        meant = paths.get(f"{name}.kind", defaults.get(f"{name}.kind"))
        if meant is not None and name != "peft" and name != str(slot):
            kinds[name] = node_of(meant, origin)
    return Layer(sections, kinds, preset)


def _unreachable(layer: Layer, registered: Registered, where: str | None) -> list[Problem]:
    outside = sorted(set(layer.sections) - REACHED)
    if not outside:
        return []
    what = "a preset" if layer.preset else "a default"
    message = f"{what} of '{registered.component.kind}' ({registered.distribution}) reaches {', '.join(outside)}"
    return [Problem(message, where=where, hint=f"the plugin may reach {', '.join(sorted(REACHED))} only")]
