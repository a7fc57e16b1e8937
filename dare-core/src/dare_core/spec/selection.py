"""Which component fills each slot, settled together with the layers that components add."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel

from dare_core.catalog import Catalog, Registered
from dare_core.components import Slot
from dare_core.errors import PluginError, Problem, UserError
from dare_core.spec.layers import SINGLE_SLOTS, Layer, laid_out, layers_of
from dare_core.spec.nodes import Node
from dare_core.spec.options import OptionReader, default_data_kind, without_silent_nulls
from dare_core.spec.plan import Origin

#: kinds where the whole spec is silent
DEFAULT_KINDS: Mapping[Slot, str] = {Slot.ROLLOUT: "native", Slot.ENGINE: "local"}
#: a component may choose others, which may choose others: more rounds than this would be a circle
_ROUNDS = 8


@dataclass
class Selection:
    """The chosen components and the merged spec.

    Attributes:
        root: all layers merged.
        picked: slot -> component; absent where none could be chosen.
        kinds: slot -> the node that names the kind.
        models: section -> config class.
        layers: what components give, lowest first.
    """

    root: Node
    picked: dict[Slot, Registered] = field(default_factory=dict)
    kinds: dict[Slot, Node] = field(default_factory=dict)
    models: dict[str, type[BaseModel]] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)

    @property
    def learns_offline(self) -> bool:
        """Whether the algorithm is known to learn from demonstrations or pairs, without rollouts."""
        algorithm = self.picked.get(Slot.ALGORITHM)
        return algorithm is not None and bool(algorithm.component.needs & {"demonstrations", "pairs"})


def select(user: Node, catalog: Catalog, sections: Iterable[str]) -> Selection:
    """Choose components until the layers they add change no choice. Problems are left to the reader.

    Args:
        user: what people wrote, merged.
        catalog: what is installed.
        sections: top-level sections that may exist.
    """
    names = tuple(sections)
    selection = Selection(root=user)
    for _ in range(_ROUNDS):
        layers = layers_of(selection.picked, user, [])
        root = laid_out(layers, user, names)
        kinds = _kinds(root, catalog)
        picked = {slot: found for slot, kind in kinds.items() if (found := _find(catalog, slot, kind)) is not None}
        settled = picked == selection.picked
        selection = Selection(root=root, picked=picked, kinds=kinds, layers=layers)
        if settled:
            break
    selection.models = _models(selection.picked, catalog)
    written = with_silent_options(user, selection.models)
    selection.root = laid_out(selection.layers, written, names, selection.models)
    return selection


def with_silent_options(user: Node, models: Mapping[str, type[BaseModel]]) -> Node:
    """What people wrote, without nulls for options that have no null."""
    entries = {
        name: without_silent_nulls(node, models[name]) if name in models and node.entries else node
        for name, node in user.entries.items()
    }
    return Node(entries, user.origin)


def report_components(selection: Selection, user: Node, reader: OptionReader) -> None:
    """Report unknown kinds, presets and unreachable paths of a settled selection."""
    for slot in SINGLE_SLOTS:
        kind = selection.kinds.get(slot)
        if kind is not None and slot not in selection.picked:
            reader.find(slot, kind, selection.root.entries.get(str(slot)) or user, str(slot))
    layers_of(selection.picked, user, reader.problems)


def missing_kind(slot: Slot, section: Node | None, root: Node, catalog: Catalog) -> Problem:
    """A section whose component cannot be told."""
    kinds = ", ".join(item.component.kind for item in catalog.components(slot)) or "none"
    where = section.where if section is not None and section.entries else root.where
    if slot is Slot.MODEL and section is not None and isinstance(_plain(section, "path"), str):
        config, reason = published_config(section)
        message = reason or "no installed family recognises config.json"
        if config is not None and not reason:
            message += f" (model_type {config.get('model_type')!r})"
        path = section.entries["path"]
        return Problem(message, "model.path", path.where, f"name the family by 'kind'; installed: {kinds}")
    if section is None or not section.entries:
        return Problem("missing section", str(slot), where, f"name its kind; installed: {kinds}")
    hint = f"installed: {kinds}"
    named = section.entries.get("path")
    if slot is Slot.DATA and named is not None and isinstance(named.value, str):
        hint, where = f"the ending of {named.value!r} does not tell it; {hint}", named.where or where
    return Problem("missing key", f"{slot}.kind", where, hint)


def published_config(section: Node) -> tuple[Mapping[str, object] | None, str | None]:
    """The parsed config.json of ``model.path``, or why there is none."""
    folder = _plain(section, "path")
    if not isinstance(folder, str):
        return None, None
    return read_config(Path(folder))


def read_config(folder: Path) -> tuple[Mapping[str, object] | None, str | None]:
    """The parsed config.json of a model folder, or why there is none."""
    try:
        if not folder.is_dir():
            return None, f"no such folder: {folder.absolute()}"
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, f"{folder} has no config.json"
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{folder / 'config.json'} cannot be read: {error}"
    if not isinstance(config, dict):
        return None, f"{folder / 'config.json'} does not hold a mapping"
    return config, None


def _kinds(root: Node, catalog: Catalog) -> dict[Slot, Node]:
    kinds: dict[Slot, Node] = {}
    for slot in SINGLE_SLOTS:
        section = root.entries.get(str(slot))
        if section is not None and not section.entries and section.value != {}:
            continue
        kind = section.entries.get("kind") if section is not None else None
        if kind is None or kind.value is None:
            kind = _default_kind(slot, section, root, catalog)
        if kind is not None:
            kinds[slot] = kind
    return kinds


def _default_kind(slot: Slot, section: Node | None, root: Node, catalog: Catalog) -> Node | None:
    if slot in DEFAULT_KINDS:
        return Node(DEFAULT_KINDS[slot], replace(root.origin, source="default", where="core"))
    if section is None:
        return None
    if slot is Slot.MODEL:
        config, _ = published_config(section)
        kind = catalog.detect_model(config) if config is not None else None
        origin = Origin(source="default", where=f"config.json of {_plain(section, 'path')}")
        return Node(kind, origin) if kind is not None else None
    return default_data_kind(slot, section)


def _find(catalog: Catalog, slot: Slot, kind: Node) -> Registered | None:
    if not isinstance(kind.value, str):
        return None
    try:
        return catalog.find(slot, kind.value)
    except UserError:
        return None


def _models(picked: Mapping[Slot, Registered], catalog: Catalog) -> dict[str, type[BaseModel]]:
    models: dict[str, type[BaseModel]] = {}
    for slot, registered in picked.items():
        try:
            models[str(slot)] = catalog.config_class(registered)
        except PluginError:
            continue
    return models


def _plain(section: Node, key: str) -> object:
    node = section.entries.get(key)
    return node.value if node is not None else None
