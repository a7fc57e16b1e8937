"""A resolved spec as YAML, with what gave each value beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dare_core.spec.plan import Origin, RunPlan
from dare_core.spec.yaml_text import scalar_text

_WIDEST = 60


def shown(plan: RunPlan) -> str:
    """The spec as YAML with one comment per value; itself a spec that resolves to the same plan."""
    lines = list(_lines(plan.resolved, "", "", plan.origins))
    width = min(_WIDEST, max((len(text) for text, origin in lines if origin), default=0))
    return "".join(f"{text:<{width}}  # {origin}\n" if origin else f"{text}\n" for text, origin in lines)


def shown_json(plan: RunPlan) -> dict[str, Any]:
    """The spec and the origin of each value as JSON values."""
    return {
        "resolved": dict(plan.resolved),
        "origins": {
            path: {"source": origin.source, "where": origin.where, "value": _value_at(plan.resolved, path)}
            for path, origin in plan.origins.items()
        },
    }


def origin_text(origin: Origin) -> str:
    """What gave a value, in words."""
    if origin.source in ("spec", "command line") and origin.where:
        return origin.where
    if origin.source == "default" and " " not in origin.where:
        return "default"
    return f"{origin.source} {origin.where}".strip()


def _lines(data: Any, path: str, indent: str, origins: Mapping[str, Origin]) -> Iterator[tuple[str, str]]:
    """(text, origin) of each line below ``path``."""
    entries = data.items() if isinstance(data, Mapping) else [("-", item) for item in data]
    for index, (key, value) in enumerate(entries):
        inner = f"{path}.{key if key != '-' else index}".lstrip(".")
        head = f"{indent}-" if key == "-" else f"{indent}{scalar_text(key)}:"
        origin = _common_origin(value, inner, origins)
        if origin is not None:
            yield f"{head} {_flow(value)}", origin_text(origin)
        elif key == "-":
            first, *rest = _lines(value, inner, indent + "  ", origins)
            yield f"{indent}- {first[0].lstrip()}", first[1]
            yield from rest
        else:
            yield head, ""
            yield from _lines(value, inner, indent + "  ", origins)


def _common_origin(value: Any, path: str, origins: Mapping[str, Origin]) -> Origin | None:
    """The origin of a scalar, of an empty collection, or of a list of scalars that share one."""
    if path in origins:
        return origins[path]
    if not isinstance(value, list) or any(isinstance(item, (list, Mapping)) for item in value):
        return None
    found = {origins.get(f"{path}.{index}") for index in range(len(value))}
    return found.pop() if len(found) == 1 else None


def _flow(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(scalar_text(item) for item in value)}]"
    return "{}" if value == {} else scalar_text(value)


def _value_at(data: Any, path: str) -> Any:
    for part in path.split("."):
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data
