"""The page for authors of model families says what the code says."""

from __future__ import annotations

import re

from tests.architecture.project import ROOT

PAGE = (ROOT / "docs/extending/model.md").read_text(encoding="utf-8")


def test_the_cost_of_the_smallest_family_is_the_measured_one():
    package = ROOT / "plugins/dare-dream"
    files = [*package.rglob("*.py"), package / "pyproject.toml"]
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    stated = {name: int(count) for name, count in re.findall(r"^\| `([\w.]+)` \| (\d+) \|$", PAGE, flags=re.MULTILINE)}
    assert stated == lines
    assert f"| {len(lines)} files | {sum(lines.values())} |" in PAGE


def test_no_family_package_is_smaller():
    def lines(package):
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in package.rglob("*.py"))

    families = [path.parents[2] for path in (ROOT / "plugins").glob("*/src/*/adapter.py")]
    assert min(families, key=lines).name == "dare-dream"


def test_what_the_page_names_exists():
    import dare_core.backbones.published as published
    import dare_core.backbones.stock as stock
    from dare_core.backbones.adapter import TransformerAdapter
    from dare_core.backbones.weights import Part

    assert all(hasattr(published, name) for name in ("check_published", "choose_ids"))
    assert all(hasattr(stock, name) for name in ("StockAdapter", "expert_parts"))
    assert all(hasattr(stock.StockAdapter, name) for name in ("layer_parts", "build_module"))
    hooks = ("build_module", "restore_buffers", "weight_layout", "fresh_std", "build_text")
    assert set(hooks) <= TransformerAdapter.__abstractmethods__
    assert Part("a").index == ()
