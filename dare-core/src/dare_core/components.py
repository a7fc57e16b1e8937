"""Component records: how a plugin says what it offers, in strings only.

Nothing here, and nothing in a module that declares components, imports torch or transformers: the
command line lists, validates and explains specs from these records alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_KIND = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LAZY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PATH = re.compile(r"[a-z_]+(\.[A-Za-z_][\w]*)*")
STABILITIES = ("stable", "beta", "experimental")


class Slot(StrEnum):
    """The places of an executor that plugins fill. The value is the spec section's name."""

    MODEL = "model"
    DATA = "data"
    ROLLOUT = "rollout"
    REWARD = "reward"
    LIKELIHOOD = "likelihood"
    ALGORITHM = "algorithm"
    ENGINE = "engine"
    EVALUATOR = "eval"
    TRACKER = "trackers"
    COMMAND = "command"

    @property
    def noun(self) -> str:
        """The slot in messages: "unknown rollout backend 'x'"."""
        return _NOUNS.get(self.value, self.value)


_NOUNS = {
    "data": "data reader",
    "rollout": "rollout backend",
    "likelihood": "likelihood estimator",
    "eval": "evaluator",
    "trackers": "tracker",
}


@dataclass(frozen=True)
class Component:
    """One thing a plugin offers.

    Attributes:
        kind: the name written in a spec (lower case words joined by hyphens).
        target: ``"package.module:Class"``, the implementation, imported when it is built.
        config: ``"package.config:Model"``, a :class:`dare_core.api.SectionConfig` without heavy imports; commands
            have none and leave it empty.
        summary: one line for listings.
        requires: import names that must be findable (looked up, never imported, before use).
        provides: capability words this component offers.
        needs: capability words other sections must provide.
        defaults: what this component wants elsewhere if the spec is silent: dotted spec path -> value.
        presets: name -> (dotted spec path -> value); chosen by ``preset:`` in this component's section. A section's
            name alone with the value None leaves the section out (``"peft": None`` = full training).
        paper: citation or arXiv id.
        stability: ``stable``, ``beta`` or ``experimental``.

    Raises:
        ValueError: a field is malformed; the loader reports it with the plugin's name.
    """

    kind: str
    target: str
    config: str
    summary: str
    requires: tuple[str, ...] = ()
    provides: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    paper: str = ""
    stability: str = "stable"

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise ValueError(f"kind {self.kind!r} must be lower case words joined by hyphens")
        for name in ("target", "config"):
            value = getattr(self, name)
            if not _LAZY.fullmatch(value) and not (name == "config" and value == ""):
                raise ValueError(f"{self.kind}: {name} {value!r} must read 'package.module:Name'")
        if not self.summary or "\n" in self.summary:
            raise ValueError(f"{self.kind}: summary must be one line")
        if self.stability not in STABILITIES:
            raise ValueError(f"{self.kind}: stability {self.stability!r} must be one of {', '.join(STABILITIES)}")
        for paths in (self.defaults, *self.presets.values()):
            for path in paths:
                if not _PATH.fullmatch(path):
                    raise ValueError(f"{self.kind}: {path!r} is not a dotted spec path such as 'rollout.temperature'")
        object.__setattr__(self, "requires", tuple(self.requires))
        object.__setattr__(self, "provides", frozenset(self.provides))
        object.__setattr__(self, "needs", frozenset(self.needs))
