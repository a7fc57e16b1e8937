"""Who may import whom."""

from __future__ import annotations

import subprocess
import sys
import tomllib

from tests.architecture.project import ROOT, plugin_packages


def test_import_contracts_are_kept():
    # In a process of its own: import-linter configures logging for the whole process.
    code = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_import_contracts_cover_every_plugin():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    packages = {package.name for package in plugin_packages()}
    assert set(settings["root_packages"]) == {"dare_core", *packages}
    for contract in settings["contracts"]:
        if contract["name"] == "core imports no plugin":
            assert set(contract["forbidden_modules"]) == packages
        if contract["name"].startswith("plugins"):
            assert set(contract.get("source_modules") or contract["modules"]) == packages
