"""Where the project's files are, for tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "dare-core" / "src" / "dare_core"
#: rooms of the control plane: no torch, transformers or numpy when they are imported
LIGHT_ROOMS = ("plugins", "spec", "cli", "run", "types", "interfaces")


@cache
def plugin_packages() -> tuple[Path, ...]:
    """Import packages of the official plugins."""
    return tuple(sorted(path.parent for path in ROOT.glob("plugins/*/src/*/__init__.py")))


@cache
def product_files() -> tuple[Path, ...]:
    """Source files that are shipped."""
    return tuple(sorted(path for package in (CORE, *plugin_packages()) for path in package.rglob("*.py")))


@cache
def own_files() -> tuple[Path, ...]:
    """All Python files of the project, tests included."""
    places = ("tests", "examples", "benchmarks")
    return product_files() + tuple(sorted(path for place in places for path in (ROOT / place).rglob("*.py")))


@cache
def tree_of(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path, line: int | None = None) -> str:
    """``path:line`` relative to the project."""
    name = path.relative_to(ROOT).as_posix()
    return name if line is None else f"{name}:{line}"


def module_name(path: Path) -> str:
    """The dotted name of a product file."""
    package = next(package for package in (CORE, *plugin_packages()) if path.is_relative_to(package))
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def light_modules() -> list[str]:
    """Modules that must not import anything heavy: the control plane, and all config and plugin modules."""
    light = []
    for path in product_files():
        inside = path.relative_to(CORE).parts if path.is_relative_to(CORE) else ()
        if path.name in ("config.py", "plugin.py") or len(inside) == 1 or (inside and inside[0] in LIGHT_ROOMS):
            light.append(module_name(path))
    return light
