"""Plugins load one by one, register as a whole or not at all, and fail alone."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.control.fake_plugins import BROKEN, Broken, declares, plugin

from dare_core.catalog import Catalog, PluginReport
from dare_core.components import Slot
from dare_core.errors import UserError
from dare_core.plugins import PluginStatus
from dare_core.testing.fake_distributions import FakeDistribution, installed


def report_of(catalog: Catalog, name: str) -> PluginReport:
    return next(report for report in catalog.reports if report.distribution == name)


def kinds(catalog: Catalog, slot: Slot) -> list[str]:
    return [item.component.kind for item in catalog.components(slot)]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.distribution.name)
def test_broken_plugin_is_reported_in_one_line_and_the_good_one_works(tmp_path: Path, case: Broken):
    with installed(tmp_path, declares("dare-good", "good"), case.distribution):
        catalog = Catalog.load()
    report = report_of(catalog, case.distribution.name)
    assert case.matches(report), report
    assert report.version == "1.0"
    assert "\n" not in str(report)
    assert report.components == ()
    assert catalog.find(Slot.ALGORITHM, "good").distribution == "dare-good"
    offered = {item.distribution for slot in Slot for item in catalog.components(slot)}
    assert case.distribution.name not in offered


def test_all_broken_plugins_together_leave_the_good_one_usable(tmp_path: Path):
    with installed(tmp_path, declares("dare-good", "good"), *(case.distribution for case in BROKEN)):
        catalog = Catalog.load()
    for case in BROKEN:
        assert case.matches(report_of(catalog, case.distribution.name))
    assert catalog.find(Slot.ALGORITHM, "good").qualified == "dare-good:good"


def test_keyboard_interrupt_at_import_is_not_swallowed(tmp_path: Path):
    with (
        installed(tmp_path, FakeDistribution(name="dare-interrupts", source="raise KeyboardInterrupt\n")),
        pytest.raises(KeyboardInterrupt),
    ):
        Catalog.load()


def test_another_api_major_is_never_imported(tmp_path: Path):
    source = f"open({str(tmp_path / 'imported')!r}, 'w').close()\n"
    future = FakeDistribution(name="dare-future", source=source, group="dare.v2")
    bounded = FakeDistribution(name="dare-bounded", source=source, requires=["dare-core<0.0.1"])
    with installed(tmp_path / "site", future, bounded):
        Catalog.load()
    assert not (tmp_path / "imported").exists()


def test_bounds_of_extras_that_were_not_asked_for_do_not_count(tmp_path: Path):
    fake = declares("dare-good", "good", requires=["dare-core>=0.1", "dare-core>=99; extra == 'next'"])
    with installed(tmp_path, fake):
        assert report_of(Catalog.load(), "dare-good").status is PluginStatus.OK


def test_two_distributions_with_one_entry_point_name_both_load(tmp_path: Path):
    one = declares("dare-one", "first", entry_points={"plugin": "dare_one.plugin"})
    two = declares("dare-two", "second", entry_points={"plugin": "dare_two.plugin"})
    with installed(tmp_path, one, two):
        assert {"first", "second"} <= set(kinds(Catalog.load(), Slot.ALGORITHM))


def test_two_entry_points_of_one_distribution_register_together_or_not_at_all(tmp_path: Path):
    more = "from dare_pair.plugin import component, hookimpl\n@hookimpl\ndef dare_algorithms():\n    return [{}]\n"
    points = {"a": "dare_pair.plugin", "b": "dare_pair.more"}
    good = declares("dare-pair", "a", entry_points=points, files={"more.py": more.format("component('b')")})
    with installed(tmp_path / "good", good):
        assert {"a", "b"} <= set(kinds(Catalog.load(), Slot.ALGORITHM))
    bad = declares("dare-pair", "a", entry_points=points, files={"more.py": more.format("component('a')")})
    with installed(tmp_path / "bad", bad):
        catalog = Catalog.load()
    assert report_of(catalog, "dare-pair").reason == "declares algorithm 'a' twice"
    assert "a" not in kinds(catalog, Slot.ALGORITHM)


def test_one_kind_in_two_slots_of_one_plugin_is_fine(tmp_path: Path):
    body = "".join(
        f"@hookimpl\ndef {hook}():\n    return [component('gsm')]\n" for hook in ("dare_rewards", "dare_evaluators")
    )
    with installed(tmp_path, plugin("dare-tasks", body)):
        assert report_of(Catalog.load(), "dare-tasks").status is PluginStatus.OK


def test_two_distributions_that_name_one_module_do_not_both_register(tmp_path: Path):
    fork = FakeDistribution(name="dare-fork", source=None, entry_points={"x": "dare_good.plugin"})
    with installed(tmp_path, declares("dare-good", "good"), fork):
        catalog = Catalog.load()
    assert "the plugin that dare-fork already registered" in report_of(catalog, "dare-good").reason


def test_plugin_that_writes_at_import_does_not_disturb_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with installed(tmp_path, plugin("dare-chatty", "import sys\nsys.stdout.write('hello')\n")):
        Catalog.load()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hello" in captured.err


def test_missing_optional_import_degrades_and_says_what_to_install(tmp_path: Path):
    body = (
        "@hookimpl\ndef dare_rollout_backends():\n"
        "    return [component('plain'), component('fast', requires=('json', 'fancy_kernels', 'json.no_such_part'))]\n"
    )
    fake = plugin("dare-fast", body, requires=["fancy-kernels>=2; extra == 'gpu'"])
    with installed(tmp_path, fake):
        catalog = Catalog.load()
    report = report_of(catalog, "dare-fast")
    assert report.status is PluginStatus.DEGRADED
    assert "rollout backend 'fast' needs fancy_kernels (pip install 'dare-fast[gpu]')" in report.reason
    assert [missing.name for missing in catalog.find(Slot.ROLLOUT, "fast").missing] == [
        "fancy_kernels",
        "json.no_such_part",
    ]
    assert catalog.find(Slot.ROLLOUT, "plain").missing == ()
    with pytest.raises(UserError, match=r"needs fancy_kernels, which is not installed; pip install 'dare-fast\[gpu\]'"):
        catalog.target_class(catalog.find(Slot.ROLLOUT, "fast"))


def test_requires_are_looked_up_without_importing(tmp_path: Path):
    package = "open(__file__ + '.imported', 'w').close()\n"
    files = {"heavy/__init__.py": package, "heavy/part.py": package}
    body = "@hookimpl\ndef dare_engines():\n    return [component('e', requires=('dare_lazy.heavy.part',))]\n"
    with installed(tmp_path, plugin("dare-lazy", body, files=files)):
        assert report_of(Catalog.load(), "dare-lazy").status is PluginStatus.OK
    assert not list(tmp_path.rglob("*.imported"))


def test_environment_switches_off_one_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DARE_DISABLE_PLUGINS", "dare_two, other")
    with installed(tmp_path, declares("dare-one", "first"), declares("dare-two", "second")):
        catalog = Catalog.load()
    assert report_of(catalog, "dare-two").status is PluginStatus.DISABLED
    assert "first" in kinds(catalog, Slot.ALGORITHM)
    with pytest.raises(UserError, match=r"dare-two 1\.0 \(disabled\)"):
        catalog.find(Slot.ALGORITHM, "second")


def test_environment_switches_off_all_third_parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DARE_NO_THIRD_PARTY", "1")
    imports = FakeDistribution(name="dare-one", source="raise SystemExit\n")
    with installed(tmp_path, imports, declares("dare-sdar", "sdar", hook="dare_model_adapters")):
        catalog = Catalog.load()
    assert report_of(catalog, "dare-one").status is PluginStatus.DISABLED
    assert catalog.find(Slot.MODEL, "sdar").distribution == "dare-sdar"


def test_given_entry_points_replace_what_is_installed():
    point = EntryPoint(name="ghost", value="no_such_ghost.plugin", group="dare.v1")
    catalog = Catalog.load(entry_points=[point])
    assert [report.distribution for report in catalog.reports] == ["dare-core", "ghost"]
    assert report_of(catalog, "ghost").status is PluginStatus.IMPORT_ERROR


def test_optional_hooks_of_newer_releases_are_accepted(tmp_path: Path):
    body = "@hookimpl(optionalhook=True)\ndef dare_future_hook(x):\n    return 1\n"
    with installed(tmp_path, plugin("dare-forward", body)):
        assert report_of(Catalog.load(), "dare-forward").status is PluginStatus.OK


def test_malformed_entry_points_are_reported(tmp_path: Path):
    fake = declares("dare-malformed", "x", entry_points={"main": "dare_malformed.plugin\nno equals sign"})
    with installed(tmp_path, declares("dare-good", "good"), fake):
        catalog = Catalog.load()
    assert "its metadata cannot be read" in report_of(catalog, "dare-malformed").reason
    assert "good" in kinds(catalog, Slot.ALGORITHM)
