"""Plain data as YAML text that means the same to any YAML reader and to :mod:`dare_core.spec.nodes`."""

from __future__ import annotations

import math
from typing import Any

import yaml

from dare_core.spec.nodes import scalar_of


def yaml_text(data: Any) -> str:
    """Block style, keys in their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def scalar_text(value: Any) -> str:
    """A scalar, or an empty list or mapping, on one line."""
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").rstrip()


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.2 would read as something else, such as ``1e3``, besides what YAML 1.1 would."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = None if isinstance(scalar_of(value), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
