"""``pytest tests/goldens [--goldens DIR] [--needed-by WORD]``: one test per case."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden_case" not in metafunc.fixturenames:
        return
    from tests.goldens.runner import cases

    root = metafunc.config.getoption("--goldens") or str(HERE / "data")
    found = cases(Path(root), metafunc.config.getoption("--needed-by"))
    metafunc.parametrize("golden_case", found, ids=[f"{case.group}/{case.id}" for case in found])


def pytest_configure(config: pytest.Config) -> None:
    for path in sorted((HERE / "handlers").glob("*.py")):
        name = f"tests.goldens.handlers.{path.stem}"
        if path.stem != "__init__" and importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
