"""Fixtures of the control plane's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.spec_plugins import Specs, pretend_catalog, write_world

from dare_core.catalog import Catalog


@pytest.fixture(scope="module")
def pretend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with pretend_catalog(tmp_path_factory.mktemp("site")) as catalog:
        yield catalog


@pytest.fixture
def specs(pretend: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Specs:
    write_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    return Specs(pretend)
