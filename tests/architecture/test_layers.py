"""Who may import whom."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from importlinter import cli
from tests.architecture.project import ROOT, plugin_packages


def test_import_contracts_are_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    monkeypatch.chdir(ROOT)
    code = cli.lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=str(tmp_path))
    assert code == 0, capsys.readouterr().out


def test_import_contracts_cover_every_plugin():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    packages = {package.name for package in plugin_packages()}
    assert set(settings["root_packages"]) == {"dare_core", *packages}
    for contract in settings["contracts"]:
        if contract["name"] == "core imports no plugin":
            assert set(contract["forbidden_modules"]) == packages
        if contract["name"].startswith("plugins"):
            assert set(contract.get("source_modules") or contract["modules"]) == packages
