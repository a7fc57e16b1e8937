"""``dare``: the command line. A command's module is imported when the command is called, never for ``--help``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from dare_core.cli.group import LazyGroup
from dare_core.plugins.discovery import DISABLE_VARIABLE, THIRD_PARTY_VARIABLE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``dare``; ``arguments`` default to the process's own.

    Returns:
        0 success, 1 failure, 2 wrong input or usage, 130 interrupted.
    """
    command = typer.main.get_command(_app)
    try:
        command.main(args=None if arguments is None else list(arguments), prog_name="dare")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


_app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dare {version('dare-core')}")
        raise typer.Exit


def _disable(names: list[str]) -> list[str]:
    """The flag equals the variable, so that worker processes see it too."""
    if names:
        before = os.environ.get(DISABLE_VARIABLE, "")
        os.environ[DISABLE_VARIABLE] = ",".join(part for part in (before, *names) if part)
    return names


def _only_official(wanted: bool) -> bool:
    if wanted:
        os.environ[THIRD_PARTY_VARIABLE] = "1"
    return wanted


@_app.callback(no_args_is_help=True)
def _options(
    disable_plugin: Annotated[
        list[str],
        typer.Option(
            metavar="NAME", help="Leave out this distribution; may be repeated.", callback=_disable, is_eager=True
        ),
    ] = [],  # noqa: B006  (typer reads the default, never changes it)
    no_third_party: Annotated[
        bool,
        typer.Option("--no-third-party", help="Load official plugins only.", callback=_only_official, is_eager=True),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if any plugin is not in order.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show tracebacks of errors.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Post-train and evaluate diffusion language models, composed from plugins."""
