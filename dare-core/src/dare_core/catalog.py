"""The catalogue: typed access to everything plugins declare. Nobody else talks to the plugin manager."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from dare_core.api import SectionConfig
from dare_core.catalog_lookup import ambiguous, broken, missing_requirements, unknown
from dare_core.components import Slot
from dare_core.errors import Problem, UserError
from dare_core.hookspecs import OBSERVERS
from dare_core.lazy import check_command, check_config_class, check_target_class, import_object
from dare_core.plugins import (
    LoadedPlugins,
    PluginReport,
    Registered,
    Switches,
    candidates_of,
    installed_candidates,
    load_plugins,
)
from dare_core.plugins.report import one_line

if TYPE_CHECKING:
    from dare_core.spec.plan import RunPlan

__all__ = ["Catalog", "PluginReport", "Registered", "Switches"]
_log = logging.getLogger("dare")


class Catalog:
    """Installed components, found by slot and kind; and one typed method per hook."""

    def __init__(self, loaded: LoadedPlugins) -> None:
        self._loaded = loaded
        self._by_slot: dict[Slot, tuple[Registered, ...]] = {
            slot: tuple(
                sorted(
                    (item for report in loaded.reports for item in report.components if item.slot is slot),
                    key=lambda item: (item.component.kind, item.distribution),
                )
            )
            for slot in Slot
        }

    @classmethod
    def load(cls, *, entry_points: Iterable[EntryPoint] | None = None, switches: Switches | None = None) -> Catalog:
        """Discover, check and register core's components and all plugins. Raises nothing for a bad plugin.

        Args:
            entry_points: use these instead of what is installed.
            switches: plugins to leave out; default: what the environment variables say.
        """
        candidates = installed_candidates() if entry_points is None else candidates_of(entry_points)
        return cls(load_plugins(candidates, switches or Switches.from_environment()))

    @property
    def reports(self) -> tuple[PluginReport, ...]:
        """Core's report, then one per distribution with plugins, sorted by name."""
        return self._loaded.reports

    def components(self, slot: Slot) -> tuple[Registered, ...]:
        """What is installed for a slot, sorted by kind and distribution."""
        return self._by_slot[slot]

    def find(self, slot: Slot, name: str) -> Registered:
        """The component named ``kind`` or ``distribution:kind``.

        Raises:
            UserError: nobody offers it (names near kinds and the package to install), several distributions do
                (names them), or the plugin that offers it is broken or switched off (names it and the reason).
        """
        distribution, colon, kind = name.rpartition(":")
        owner = canonicalize_name(distribution) if colon else None
        found = [
            item
            for item in self._by_slot[slot]
            if item.component.kind == kind and (owner is None or item.distribution == owner)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise UserError(ambiguous(slot, name, found))
        problem = broken(slot, kind, owner, self.reports)
        raise UserError(problem or unknown(slot, name, self._by_slot[slot], self.reports))

    def config_class(self, registered: Registered) -> type[SectionConfig]:
        """The class that validates a component's section.

        Raises:
            PluginError: it cannot be imported or breaks the contract of its slot.
        """
        return check_config_class(import_object(registered, registered.component.config), registered)

    def target_class(self, registered: Registered) -> type:
        """The class that implements a component of any slot but ``command``.

        Raises:
            UserError: an import it requires is not installed; says what to install.
            PluginError: it cannot be imported or does not implement its slot's interface.
        """
        return check_target_class(_import_target(registered), registered)

    def command(self, registered: Registered) -> Callable[[list[str]], int]:
        """The function behind a plugin's command: arguments -> exit code. Raises like :meth:`target_class`."""
        return check_command(_import_target(registered), registered)

    def detect_model(self, config: Mapping[str, Any]) -> str | None:
        """The model kind a parsed ``config.json`` belongs to: first answer in order of distribution names."""
        for distribution, answer in self._call_each("dare_detect_model", config=config):
            if isinstance(answer, Exception):
                _log.warning("%s failed to look at the model's config.json: %s", distribution, one_line(answer))
            elif answer is not None:
                return str(answer)
        return None

    def check_run(self, plan: RunPlan) -> list[Problem]:
        """Problems that plugins see in a resolved run. A check that fails is itself a problem."""
        problems: list[Problem] = []
        for distribution, answer in self._call_each("dare_check_run", plan=plan):
            for problem in _problems_of(answer):
                if isinstance(problem, Problem):
                    problems.append(problem)
                else:
                    problems.append(Problem(f"{distribution} could not check this run: {problem}"))
        return problems

    def notify(self, hook_name: str, event: object) -> None:
        """Tell all observers of one observing hook. An observer that fails is a warning.

        Raises:
            ValueError: ``hook_name`` is not an observing hook.
        """
        if hook_name not in OBSERVERS:
            raise ValueError(f"{hook_name!r} is not one of {', '.join(OBSERVERS)}")
        for distribution, answer in self._call_each(hook_name, event=event):
            if isinstance(answer, Exception):
                _log.warning("%s failed in %s: %s", distribution, hook_name, one_line(answer))

    def _call_each(self, hook: str, **arguments: object) -> Iterator[tuple[str, Any]]:
        """Call one hook of each plugin in turn: (distribution, result or the exception it raised)."""
        manager = self._loaded.manager
        implemented = {implementation.plugin_name for implementation in getattr(manager.hook, hook).get_hookimpls()}
        for distribution, plugins in self._loaded.objects.items():
            if not any(manager.get_name(plugin) in implemented for plugin in plugins):
                continue
            others = [plugin for plugin in manager.get_plugins() if not any(plugin is own for own in plugins)]
            try:
                answer = manager.subset_hook_caller(hook, others)(**arguments)
            except Exception as error:
                answer = error
            yield distribution, answer


def _import_target(registered: Registered) -> Any:
    if registered.missing:
        raise UserError(missing_requirements(registered))
    return import_object(registered, registered.component.target)


def _problems_of(answer: Any) -> list[Any]:
    if isinstance(answer, Exception):
        return [one_line(answer)]
    try:
        return [problem for part in answer for problem in part]
    except Exception as error:
        return [one_line(error)]
