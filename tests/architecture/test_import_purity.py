"""The control plane stays light and fast: nothing heavy is imported before something is computed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.architecture.project import light_modules

HEAVY = ("torch", "transformers", "numpy", "peft", "safetensors", "tokenizers", "datasets", "pyarrow", "sympy")
_COMMAND = """
import sys
from dare_core.cli.main import main
code = main(sys.argv[2:])
loaded = sorted(name for name in sys.argv[1].split(",") if name in sys.modules)
sys.stderr.write(f"code {code} loaded {loaded}")
"""
_IMPORTS = """
import importlib, json, sys
heavy, blamed = sys.argv[1].split(","), {}
for name in sys.argv[2:]:
    before = set(sys.modules)
    importlib.import_module(name)
    found = [module for module in heavy if module in sys.modules and module not in before]
    if found:
        blamed[name] = found
sys.stdout.write(json.dumps(blamed))
"""


def run(code: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "command", [("--help",), ("plugins", "list"), ("plugins", "matrix"), ("validate", "--help"), ("run", "--help")]
)
def test_commands_that_only_look_import_nothing_heavy(tmp_path: Path, command: tuple[str, ...]):
    done = run(_COMMAND, ",".join(HEAVY), *command, folder=tmp_path)
    assert done.stderr.endswith("code 0 loaded []"), done.stderr


def test_help_does_without_rich(tmp_path: Path):
    assert run(_COMMAND, "rich", "--help", folder=tmp_path).stderr.endswith("code 0 loaded []")


def test_control_plane_config_and_plugin_modules_import_nothing_heavy(tmp_path: Path):
    done = run(_IMPORTS, ",".join(HEAVY), *light_modules(), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
