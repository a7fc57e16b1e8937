"""What loading found: one report per distribution, one record per usable component."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dare_core.components import Component, Slot


class PluginStatus(StrEnum):
    """What became of a distribution's plugin."""

    OK = "ok"
    #: usable, but an import that some component requires is missing
    DEGRADED = "degraded"
    #: switched off by a flag or an environment variable
    DISABLED = "disabled"
    #: written for another plugin API or another dare-core
    INCOMPATIBLE = "incompatible"
    #: its declaring module cannot be imported
    IMPORT_ERROR = "import-error"
    #: it imports, but its hooks or components break the contract
    INVALID = "invalid"


@dataclass(frozen=True, kw_only=True)
class MissingImport:
    """An import that a component requires and that is not installed.

    Attributes:
        name: the import name.
        install: the command that provides it.
    """

    name: str
    install: str


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A component that can be used, and who offers it.

    Attributes:
        component: the record.
        slot: where it fits.
        distribution: canonical name of the package.
        version: version of the package.
        missing: required imports that are not installed; the component is listed but cannot be built.
    """

    component: Component
    slot: Slot
    distribution: str
    version: str
    missing: tuple[MissingImport, ...] = ()

    @property
    def qualified(self) -> str:
        """The unambiguous name, ``dare-foo:kind``."""
        return f"{self.distribution}:{self.component.kind}"


@dataclass(frozen=True, kw_only=True)
class PluginReport:
    """One distribution's plugin.

    Attributes:
        distribution: canonical name (``dare-foo``).
        version: its version, or ``unknown``.
        status: what became of it.
        reason: one line; empty when ok.
        components: what it registered, sorted; empty unless ok or degraded.
        withheld: (slot, kind) that it declared before it was rejected.
        official: published together with core.
    """

    distribution: str
    version: str
    status: PluginStatus
    reason: str = ""
    components: tuple[Registered, ...] = ()
    withheld: tuple[tuple[Slot, str], ...] = ()
    official: bool = False

    @property
    def usable(self) -> bool:
        """Whether its components are registered."""
        return self.status in (PluginStatus.OK, PluginStatus.DEGRADED)

    @property
    def faulty(self) -> bool:
        """Whether strict mode refuses it."""
        return self.status not in (PluginStatus.OK, PluginStatus.DISABLED)

    def __str__(self) -> str:
        head = f"{self.distribution} {self.version}: {self.status}"
        return f"{head}: {self.reason}" if self.reason else head


class Rejected(Exception):
    """A plugin cannot be used. Never leaves the loader: it becomes a report."""

    def __init__(self, status: PluginStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def one_line(error: BaseException, limit: int = 300) -> str:
    """Type and message of an exception on one line."""
    text = " ".join(str(error).split())
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= limit else f"{line[: limit - 3]}..."
