"""One section's options, and components nested in them, validated by their owners' config classes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dare_core.api import SectionConfig
from dare_core.catalog import Catalog, Registered
from dare_core.components import Slot
from dare_core.errors import PluginError, Problem, UserError
from dare_core.spec.draft import Used
from dare_core.spec.layers import own_layers
from dare_core.spec.merge import merged_section, of_kind, spelled_out
from dare_core.spec.nodes import Node, described
from dare_core.spec.plan import Choice
from dare_core.spec.problems import nearest
from dare_core.spec.pydantic_errors import Section, problems_of, unknown_key
from dare_core.spec.slots import STAND_IN, SlotOptions

#: keys of a component's section that are not its options
RESERVED = frozenset({"kind", "preset"})


@dataclass
class OptionReader:
    """Validates sections against the installed components, gathering problems.

    Attributes:
        catalog: what is installed.
        elsewhere: key -> sections that have it, to explain misplaced keys.
        problems: everything found so far.
        filled: path -> the options of a nested component with its presets and wishes filled in.
        used: every component found, whether or not its options are valid.
        settled: whether every named component is known. Otherwise options may be missing only because nobody could
            give them, and that is not reported (but for ``run``, which nobody else fills).
    """

    catalog: Catalog
    elsewhere: Mapping[str, Sequence[str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    filled: dict[str, Node] = field(default_factory=dict)
    used: list[Used] = field(default_factory=list)
    settled: bool = True

    def config_class(self, registered: Registered, path: str, where: str | None) -> type[SectionConfig] | None:
        """The component's config class; a plugin that breaks its contract is a problem of this section."""
        try:
            return self.catalog.config_class(registered)
        except PluginError as error:
            self.problems.append(Problem(str(error), path, where))
            return None

    def find(self, slot: Slot, kind: Node, section: Node, path: str) -> Registered | None:
        """The component a section names. Where it is unknown, the section's keys are checked against near kinds."""
        name = kind.value
        if not isinstance(name, str):
            self.problems.append(Problem(f"must name a {slot.noun}, not {described(kind)}", f"{path}.kind", kind.where))
            return None
        try:
            return self.catalog.find(slot, name)
        except UserError as error:
            self.problems += [
                replace(problem, path=f"{path}.kind", where=kind.where or section.where) for problem in error.problems
            ]
        self._check_keys_of_unknown(slot, name, section, path)
        return None

    def _check_keys_of_unknown(self, slot: Slot, name: str, section: Node, path: str) -> None:
        installed = {item.component.kind: item for item in self.catalog.components(slot)}
        near = nearest(name.rpartition(":")[2], installed)
        candidates = [installed[near]] if near is not None else list(installed.values())
        known: set[str] = set()
        for item in candidates:
            try:
                known |= _keys(self.catalog.config_class(item))
            except PluginError:
                return
        label = f"'{near}'" if near is not None else f"any {slot.noun}"
        for key, node in section.entries.items():
            if candidates and key not in known | RESERVED:
                self.problems.append(unknown_key(key, node, label, f"{path}.{key}", known, self.elsewhere))

    def read(
        self, node: Node, model: type[SectionConfig], path: str, label: str, *, component: bool = True
    ) -> SectionConfig | None:
        """The validated options of ``node``, or None where there were problems.

        Args:
            node: the section, all layers merged.
            model: its config class.
            path: its dotted path.
            label: whose options they are, quoted in messages.
            component: whether ``kind`` and ``preset`` are not options.
        """
        if not isinstance(node.value, Mapping):
            self.problems.append(Problem(f"must be a mapping of options, not {described(node)}", path, node.where))
            return None
        options = Node(
            {k: v for k, v in node.entries.items() if not (component and k in RESERVED)},
            node.origin,
        )
        before = len(self.problems)
        ready: dict[str, Choice] = {}
        failed: set[str] = set()
        data = self._filled_in(options, model, path, ready, failed)
        config, errors = _validated(model, data, ready)
        if not self.settled and path != "run":
            errors = [error for error in errors if error["type"] != "missing"]
        if errors:
            found = problems_of(errors, Section(options, model, path, label, self.elsewhere))
            self.problems += [problem for problem in found if problem.path not in failed]
        return config if len(self.problems) == before else None

    def choice(self, slot: Slot, registered: Registered, kind: Node, node: Node, path: str) -> Choice | None:
        """A component with its validated options, or None where there were problems."""
        model = self.config_class(registered, path, node.where)
        config = self.read(node, model, path, str(kind.value)) if model is not None else None
        place = kind.where or node.where
        self.used.append(Used(path=path, slot=slot, registered=registered, where=place, config=config))
        if config is None:
            return None
        return Choice(
            component=registered.component,
            distribution=f"{registered.distribution} {registered.version}",
            config=config,
            qualified=":" in str(kind.value),
        )

    def item(self, slot: Slot, written: Node, path: str) -> Choice | None:
        """A component that is not a section of its own: an evaluation, a tracker, a nested component."""
        node = spelled_out(written)
        if not isinstance(node.value, Mapping):
            message = f"must be a mapping with 'kind' and options, not {described(node)}"
            self.problems.append(Problem(message, path, node.where))
            return None
        kind = node.entries.get("kind") or default_data_kind(slot, node)
        if kind is None or kind.value is None:
            kinds = ", ".join(item.component.kind for item in self.catalog.components(slot)) or "none"
            self.problems.append(Problem("missing key", f"{path}.kind", node.where, f"installed: {kinds}"))
            return None
        registered = self.find(slot, kind, node, path)
        if registered is None:
            return None
        model = self.config_class(registered, path, node.where)
        if model is None:
            return None
        written_options = without_silent_nulls(node, model)
        node = Node({"kind": kind}, node.origin)
        for layer in own_layers(slot, registered, written_options, path, self.problems):
            node = merged_section(str(slot), node, Node(of_kind(str(slot), layer, kind), layer.origin))
        node = merged_section(str(slot), node, written_options)
        self.filled[path] = node
        return self.choice(slot, registered, kind, node, path)

    def _filled_in(
        self, node: Node, model: type[BaseModel], path: str, ready: dict[str, Choice], failed: set[str]
    ) -> dict[str, Any]:
        """The options as plain data, with a stand-in wherever the model holds a component."""
        inline, marker = next(
            ((name, found) for name, info in model.model_fields.items() if (found := _inline(info))), (None, None)
        )
        data: dict[str, Any] = {}
        rest: dict[str, Node] = {}
        for key, child in node.entries.items():
            if key in model.model_fields and key != inline:
                info = model.model_fields[key]
                data[key] = self._value(child, _annotations(info), f"{path}.{key}", ready, failed)
            elif inline is not None:
                rest[key] = child
            else:
                data[key] = child.plain()
        if inline is not None and marker is not None:
            data[inline] = self._stand_in(marker.slot, Node(rest, node.origin), path, ready, failed)
        return data

    def _value(
        self, node: Node, annotations: Sequence[Any], path: str, ready: dict[str, Choice], failed: set[str]
    ) -> Any:
        """One option as plain data; ``annotations`` are the branches of its type."""
        for annotation in annotations:
            if isinstance(annotation, SlotOptions):
                null = node.value is None and NoneType in annotations
                return None if null else self._stand_in(annotation.slot, node, path, ready, failed)
            if isinstance(annotation, type) and issubclass(annotation, BaseModel) and node.entries:
                return self._filled_in(node, annotation, path, ready, failed)
            inner = [branch for arg in get_args(annotation) for branch in _branches(arg)]
            if node.items and any(_holds_component(branch) for branch in inner):
                items = [spelled_out(item) if _inline_model(inner) else item for item in node.items]
                return [self._value(item, inner, f"{path}.{i}", ready, failed) for i, item in enumerate(items)]
        return node.plain()

    def _stand_in(self, slot: Slot, node: Node, path: str, ready: dict[str, Choice], failed: set[str]) -> Any:
        choice = self.item(slot, node, path)
        if choice is None:
            failed.add(path)
            return None
        ready[path] = choice
        return {STAND_IN: path}


def _validated(
    model: type[SectionConfig], data: dict[str, Any], ready: Mapping[str, Choice]
) -> tuple[SectionConfig | None, list[ErrorDetails]]:
    """The config and all errors: unknown keys do not keep checks of the whole section from running."""
    try:
        return model.model_validate_json(json.dumps(data), strict=True, context=ready), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    unknown = {error["loc"][0] for error in errors if error["type"] == "extra_forbidden" and len(error["loc"]) == 1}
    if len(unknown) == len(errors):
        _, further = _validated(model, {key: data[key] for key in data if key not in unknown}, ready)
        errors += further
    return None, errors


def without_silent_nulls(section: Node, model: type[BaseModel]) -> Node:
    """A hand-written section without its nulls for options that have no null: these are silent again."""
    return Node(
        {
            key: node
            for key, node in section.entries.items()
            if node.value is not None
            or (key in model.model_fields and _has_null(model.model_fields[key]))
            or (key not in model.model_fields and key not in RESERVED)
        },
        section.origin,
    )


def is_folder(path: str) -> bool:
    """Whether a path names a folder; anything that cannot be a path does not."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def default_data_kind(slot: Slot, section: Node) -> Node | None:
    """The kind of data that a file's ending tells."""
    path = section.entries.get("path")
    if slot is not Slot.DATA or path is None or not isinstance(path.value, str):
        return None
    name = path.value.lower()
    if name.endswith((".jsonl", ".jsonl.gz")):
        kind = "jsonl"
    elif name.endswith(".parquet"):
        kind = "parquet"
    elif Path(name).suffix in ("", ".") or is_folder(path.value):
        kind = "datasets"
    else:
        return None
    return Node(kind, replace(path.origin, source="default", where=f"ending of {path.value}"))


def _keys(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


def _annotations(info: FieldInfo) -> list[Any]:
    markers = [item for item in info.metadata if isinstance(item, SlotOptions)]
    return [*markers, *_branches(info.annotation)]


def _branches(annotation: Any) -> list[Any]:
    """The branches of a union; what ``Annotated`` adds comes first."""
    metadata = getattr(annotation, "__metadata__", ())
    if metadata:
        markers = [item for item in metadata if isinstance(item, SlotOptions)]
        return [*markers, *_branches(annotation.__origin__)]
    if type(annotation).__name__ in ("UnionType", "_UnionGenericAlias", "Union"):
        return [branch for arg in get_args(annotation) for branch in _branches(arg)]
    return [annotation]


def _has_null(info: FieldInfo) -> bool:
    branches = _branches(info.annotation)
    return NoneType in branches or Any in branches


def _inline(info: FieldInfo) -> SlotOptions | None:
    return next((item for item in info.metadata if isinstance(item, SlotOptions) and item.inline), None)


def _inline_model(branches: Sequence[Any]) -> bool:
    return any(
        isinstance(branch, type) and issubclass(branch, BaseModel) and any(map(_inline, branch.model_fields.values()))
        for branch in branches
    )


def _holds_component(annotation: Any) -> bool:
    if isinstance(annotation, SlotOptions):
        return True
    return isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation is not Choice
