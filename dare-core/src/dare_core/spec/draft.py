"""A spec on its way to a plan: what could be validated so far, so that checks across sections run in the same go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dare_core.api import SectionConfig
from dare_core.catalog import Registered
from dare_core.components import Slot
from dare_core.spec.nodes import Node
from dare_core.spec.plan import Choice
from dare_core.spec.sections import OptimSection, PeftSection, RunSection


@dataclass(frozen=True, kw_only=True)
class Used:
    """A component that the spec uses, whether or not its options are valid.

    Attributes:
        path: its dotted path (``reward.parts.0``).
        slot: what it is.
        registered: the component and who offers it.
        where: its place in the spec.
        config: its validated options, if they are.
    """

    path: str
    slot: Slot
    registered: Registered
    where: str | None
    config: SectionConfig | None

    @property
    def title(self) -> str:
        """The component in messages: ``algorithm 'd1'``."""
        return f"{self.slot.noun} '{self.registered.component.kind}'"

    @property
    def provides(self) -> frozenset[str]:
        """Capability words of the component, and those that follow from its options (``config.gives``)."""
        return self.registered.component.provides | getattr(self.config, "gives", frozenset())

    @property
    def needs(self) -> frozenset[str]:
        """Capability words that the component needs, and those that its options need besides (``config.needs``)."""
        return self.registered.component.needs | getattr(self.config, "needs", frozenset())


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Sections and components as far as they are valid.

    Attributes:
        root: the merged spec.
        used: every component, nested ones too.
        choices: slot -> component with valid options.
        run, optim, peft: core's sections, None where absent or invalid.
        evals, trackers: valid items.
    """

    root: Node
    used: tuple[Used, ...]
    choices: Mapping[Slot, Choice]
    run: RunSection | None
    optim: OptimSection | None
    peft: PeftSection | None
    evals: tuple[Choice, ...]
    trackers: tuple[Choice, ...]

    def section(self, slot: Slot) -> Used | None:
        """The component that fills a slot of its own section."""
        return next((used for used in self.used if used.path == str(slot) and used.slot is slot), None)

    def configs(self, slot: Slot) -> Iterator[tuple[str, SectionConfig]]:
        """(path, options) of every component of a slot, nested ones too, as far as they are valid."""
        for used in self.used:
            if used.slot is slot and used.config is not None:
                yield used.path, used.config

    def place(self, path: str) -> str | None:
        """Where a value stands, or else its section."""
        node = self.root.get(path.split("."))
        section = self.root.entries.get(path.split(".")[0])
        places = [found.where for found in (node, section, self.root) if found is not None]
        return next(filter(None, places), None)
