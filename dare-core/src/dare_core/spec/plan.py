"""A resolved run: every section validated by its owner, every component chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from dare_core.api import SectionConfig
from dare_core.components import Component, Slot
from dare_core.spec.sections import OptimSection, PeftSection, RunSection
from dare_core.types.model import ModelFacts


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A component with its validated options.

    Attributes:
        component: the record.
        distribution: ``name version`` of the package that offers it.
        config: validated options, an instance of the component's config class.
        qualified: whether the spec names it ``distribution:kind``, because several packages offer the kind.
    """

    component: Component
    distribution: str
    config: SectionConfig
    qualified: bool = False

    @property
    def name(self) -> str:
        """The kind as a spec names it."""
        kind = self.component.kind
        return f"{self.distribution.split(' ', 1)[0]}:{kind}" if self.qualified else kind

    def target(self) -> Any:
        """The implementation, imported. Its ``requires`` were checked when the spec was resolved."""
        module, _, name = self.component.target.partition(":")
        return getattr(import_module(module), name)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What gave a value: ``source`` is ``command line``, ``overlay``, ``spec``, ``preset``, ``algorithm``,
    ``likelihood`` or ``default``; ``where`` is ``file:line`` or the preset's or component's name."""

    source: str
    where: str = ""

    @property
    def by_hand(self) -> bool:
        """Whether a person wrote the value, so that ``where`` is a place to look at."""
        return self.source in ("spec", "overlay", "command line")


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What ``dare run`` executes and ``dare show`` prints.

    Attributes:
        run, optim, peft: core sections; ``peft`` None = full training.
        choices: slot -> component, for model, data, rollout, reward, likelihood, algorithm, engine;
            slots that the algorithm's loop does not use may be absent.
        evals: evaluations during the run.
        trackers: metric receivers.
        facts: of the model's published config, if it could be read; lengths were checked against it.
        resolved: the whole spec as plain data, defaults filled in: what spec/resolved.yaml holds.
        origins: dotted path -> what gave the value.
    """

    run: RunSection
    optim: OptimSection
    peft: PeftSection | None
    choices: Mapping[Slot, Choice]
    evals: tuple[Choice, ...] = ()
    trackers: tuple[Choice, ...] = ()
    facts: ModelFacts | None = None
    resolved: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)

    @property
    def online(self) -> bool:
        """Whether the algorithm learns from rollouts; otherwise from demonstrations or pairs."""
        return not self.choices[Slot.ALGORITHM].component.needs & {"demonstrations", "pairs"}

    def __getitem__(self, slot: Slot) -> Choice:
        return self.choices[slot]

    def __contains__(self, slot: Slot) -> bool:
        return slot in self.choices
