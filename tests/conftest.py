"""Options shared by all tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--goldens", default=None, help="folder of golden cases; default: the project's own")
    parser.addoption("--needed-by", default=None, help="only golden cases that this part of the project needs")
