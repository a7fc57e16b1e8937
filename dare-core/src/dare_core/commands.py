"""Core's own commands: name -> (``module:function``, summary). Modules are imported when a command is called."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "run": ("dare_core.cli.run:run", "Train what a spec describes."),
        "resume": ("dare_core.cli.resume:resume", "Continue an interrupted run."),
        "validate": ("dare_core.cli.validate:validate", "Check a spec without loading a model."),
        "show": ("dare_core.cli.show:show", "Print a resolved spec and what gave each value."),
        "schema": ("dare_core.cli.schema:schema", "Write a JSON schema of specs for editors."),
        "generate": ("dare_core.cli.generate:generate", "Sample responses from a model."),
        "chat": ("dare_core.cli.chat:chat", "Talk to a model."),
        "bench": ("dare_core.cli.bench:app", "Measure decoders on this machine."),
        "eval": ("dare_core.cli.eval:app", "Evaluate a model on tasks; compare results."),
        "export": ("dare_core.cli.export:export", "Write a trained model in its published layout."),
        "plugins": ("dare_core.cli.plugins:app", "List installed plugins and what works with what."),
    }
)
#: commands that plugins add subcommands to: a plugin's command ``eval-x`` is ``dare eval x``
OPEN_GROUPS = ("eval",)
