"""The group of commands: core's own by a table, plugins' by their declarations, all imported late."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from dare_core.cli.context import catalog
from dare_core.cli.failures import report_faulty, tell
from dare_core.commands import COMMANDS, OPEN_GROUPS
from dare_core.components import Slot
from dare_core.errors import DareError

if TYPE_CHECKING:
    from typer.core import TyperCommand

_RAW = "dare.arguments"
#: set in a context's meta: strict mode found a faulty plugin, the command lists it, and the exit code is 1
_FAULTY = "dare.faulty"


class LazyGroup(TyperGroup):
    """Knows its commands by name and summary; turns errors of commands into messages and exit codes."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of core's commands, then of plugins' commands; ambiguous ones in their qualified form."""
        return [name for name, _ in _listing()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return one command.

        Raises:
            UserError: there is no such command; names near ones.
        """
        if cmd_name in COMMANDS:
            return _core_command(cmd_name)
        return _plugin_command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and summaries without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl(_listing())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the raw arguments, to know whether JSON was asked for when a command fails."""
        ctx.meta[_RAW] = list(args)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """In strict mode, refuse before the command's module is imported; ``plugins`` may list what is wrong."""
        if ctx.params.get("strict") and report_faulty(catalog().reports):
            if args[0] != "plugins":
                raise typer.Exit(1)
            ctx.meta[_FAULTY] = True
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for. Its integer result is the exit code."""
        try:
            result = super().invoke(ctx)
        except (DareError, KeyboardInterrupt) as error:
            result = self._tell(ctx, error)
        except Exception as error:
            if type(error).__module__.startswith(("typer", "click")) or isinstance(error, BrokenPipeError):
                raise
            result = self._tell(ctx, error)
        code = result if isinstance(result, int) else 0
        if code or ctx.meta.get(_FAULTY):
            raise typer.Exit(code or 1)
        return result

    @staticmethod
    def _tell(ctx: Any, error: BaseException) -> int:
        return tell(error, as_json="--json" in ctx.meta[_RAW], traceback=bool(ctx.params.get("traceback")))


class OpenGroup(TyperGroup):
    """A group of core's that plugins add to: a plugin's command ``eval-x`` is ``dare eval x``."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of its own commands, then of those that plugins add."""
        prefix = f"{ctx.info_name}-"
        kinds = [item.component.kind for item in catalog().components(Slot.COMMAND)]
        return [*super().list_commands(ctx), *(kind.removeprefix(prefix) for kind in kinds if kind.startswith(prefix))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Its own command, or a plugin's."""
        own = super().get_command(ctx, cmd_name)
        added = set(self.list_commands(ctx)) - set(self.commands)
        return _plugin_command(f"{ctx.info_name}-{cmd_name}") if own is None and cmd_name in added else own


def _listing() -> list[tuple[str, str]]:
    components = catalog().components(Slot.COMMAND)
    kinds = [item.component.kind for item in components]
    rows = [(name, summary) for name, (_, summary) in COMMANDS.items()]
    for item in components:
        if item.component.kind.startswith(tuple(f"{group}-" for group in OPEN_GROUPS)):
            continue
        name = item.component.kind if kinds.count(item.component.kind) == 1 else item.qualified
        rows.append((name, f"{item.component.summary} ({item.distribution})"))
    return rows


def _core_command(name: str) -> Any:
    reference, summary = COMMANDS[name]
    module_name, _, attribute = reference.partition(":")
    found = getattr(importlib.import_module(module_name), attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, short_help=summary)(found)
    return typer.main.get_command(app)


def _plugin_command(name: str) -> TyperCommand:
    """A command that passes its arguments to the plugin as they are."""
    loaded = catalog()
    registered = loaded.find(Slot.COMMAND, name)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command(
        name,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
    )
    def call(context: typer.Context) -> int:
        return loaded.command(registered)(list(context.args))

    return typer.main.get_command(app)  # type: ignore[return-value]
