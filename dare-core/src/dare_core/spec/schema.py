"""A JSON schema (draft 2020-12) of specs, from all installed components, for editors.

It knows every section, kind and option, so that editors complete keys and show typos while typing. What a section
must hold is not in it: overlays are incomplete, and algorithms and presets fill options in. ``dare validate`` decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from dare_core.catalog import Catalog, Registered
from dare_core.components import Slot
from dare_core.errors import PluginError
from dare_core.spec.resolve import CORE_SECTIONS, SECTIONS, SPEC_VERSION
from dare_core.spec.selection import DEFAULT_KINDS

Schema = dict[str, Any]
_LISTS = (Slot.EVALUATOR, Slot.TRACKER)


def spec_schema(catalog: Catalog) -> Schema:
    """The schema of specs and overlays."""
    definitions: dict[str, Schema] = {}
    for slot in Slot:
        if slot is not Slot.COMMAND:
            _add_slot(slot, catalog, definitions)
    properties: dict[str, Schema] = {"dare": {"const": SPEC_VERSION, "description": "Version of the spec's form."}}
    for name in SECTIONS:
        if name in CORE_SECTIONS:
            definitions[name] = _section(CORE_SECTIONS[name], name, definitions, closed=True)
            properties[name] = {"anyOf": [_ref(name), {"type": "null"}]} if name == "peft" else _ref(name)
        elif name != "dare":
            properties[name] = _slot_property(Slot(name))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dare spec",
        "type": "object",
        "properties": properties,
        "patternProperties": {"^x-": True},
        "additionalProperties": False,
        "$defs": definitions,
    }


def _slot_property(slot: Slot) -> Schema:
    item = _ref(str(slot))
    return {"if": {"type": "array"}, "then": {"items": item}, "else": item} if slot in _LISTS else item


def _add_slot(slot: Slot, catalog: Catalog, definitions: dict[str, Schema]) -> None:
    """``<slot>``: a kind or a mapping; ``<slot>.options``: the mapping, open for keys beside it; and one per kind."""
    names: list[str] = []
    cases: list[Schema] = []
    offered = catalog.components(slot)
    fallbacks: list[Schema] = []
    for registered in offered:
        kind = registered.component.kind
        alone = sum(other.component.kind == kind for other in offered) == 1
        forms = [kind, registered.qualified] if alone else [registered.qualified]
        names += forms
        definition = f"{slot}.{registered.qualified.replace(':', '.')}"
        definitions[definition] = _component(registered, catalog, definition, definitions)
        cases.append({"if": {"properties": {"kind": {"enum": forms}}, "required": ["kind"]}, "then": _ref(definition)})
        if DEFAULT_KINDS.get(slot, kind) == kind:
            fallbacks.append(_ref(definition))
    fallback = {"anyOf": fallbacks} if fallbacks else {}
    kinds: Schema = {"enum": names} if names else {"not": {}}
    definitions[f"{slot}.options"] = {
        "type": "object",
        "properties": {"kind": {**kinds, "description": f"Which {slot.noun}."}},
        "allOf": [*cases, {"if": {"not": {"required": ["kind"]}}, "then": fallback}],
    }
    definitions[str(slot)] = {
        "type": ["object", "string", "null"],
        "if": {"type": "object"},
        "then": {**_ref(f"{slot}.options"), "unevaluatedProperties": False},
        "else": {"enum": [*names, None]},
    }


def _component(registered: Registered, catalog: Catalog, definition: str, definitions: dict[str, Schema]) -> Schema:
    try:
        model = catalog.config_class(registered)
    except PluginError:
        return {"type": "object", "additionalProperties": True}
    schema = _section(model, definition, definitions, closed=False)
    schema["description"] = registered.component.summary
    if registered.component.presets:
        choices = {"enum": [*sorted(registered.component.presets), None], "description": "A named setting."}
        schema["properties"] = {**schema["properties"], "preset": choices}
    return schema


def _section(model: type[BaseModel], prefix: str, definitions: dict[str, Schema], *, closed: bool) -> Schema:
    """A config class's schema; options may be absent, or null, which makes them silent again."""
    raw = model.model_json_schema(ref_template=f"#/$defs/{prefix}.{{model}}")
    for name, inner in raw.pop("$defs", {}).items():
        definitions[f"{prefix}.{name}"] = _clean(inner)
    schema: Schema = _clean(raw)
    schema.pop("required", None)
    schema.pop("additionalProperties", None)
    schema["properties"] = {key: _nullable(value) for key, value in schema.get("properties", {}).items()}
    if closed:
        schema["additionalProperties"] = False
    return schema


def _clean(schema: Any) -> Any:
    """Without pydantic's titles, with marks of nested components replaced."""
    if isinstance(schema, list):
        return [_clean(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "x-slot" in schema:
        nested = {**_ref(schema["x-slot"]), "description": schema.get("description", "")}
        return _nullable(nested) if schema["x-null"] else nested
    cleaned = {key: _clean(value) for key, value in schema.items() if key not in ("title", "properties", "default")}
    if "default" in schema and _plain(schema["default"]):
        cleaned["default"] = schema["default"]
    properties: Mapping[str, Any] = schema.get("properties", {})
    if "properties" in schema:
        cleaned["properties"] = {key: _clean(value) for key, value in properties.items()}
    inline = [key for key, value in properties.items() if isinstance(value, dict) and value.get("x-inline")]
    return _with_inline(cleaned, inline[0], properties[inline[0]]["x-slot"]) if inline else cleaned


def _with_inline(schema: Schema, key: str, slot: str) -> Schema:
    """A class whose field ``key`` holds a component that is written beside its other fields."""
    rest = {name: value for name, value in schema["properties"].items() if name != key}
    required = [name for name in schema.get("required", []) if name != key]
    whole = {
        **{name: value for name, value in schema.items() if name not in ("additionalProperties", "required")},
        "properties": rest,
        "allOf": [_ref(f"{slot}.options")],
        "unevaluatedProperties": False,
        "required": [*required, *([] if slot == str(Slot.DATA) else ["kind"])],
    }
    return {"if": {"type": "object"}, "then": whole, "else": {**_ref(slot), "type": "string"}}


def _nullable(schema: Schema) -> Schema:
    if schema.get("type") == "null" or any(branch.get("type") == "null" for branch in schema.get("anyOf", ())):
        return schema
    outer: Schema = {key: schema[key] for key in ("description", "default") if key in schema}
    return {**outer, "anyOf": [{k: v for k, v in schema.items() if k not in outer}, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool)) or (isinstance(value, Sequence) and not value)
