"""Finding components, importing what they name, and calling hooks."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.control.fake_plugins import declares, plugin

from dare_core.api import SectionConfig
from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.errors import PluginError, Problem, UserError
from dare_core.spec.plan import RunPlan
from dare_core.spec.sections import OptimSection, RunSection
from dare_core.testing.fake_distributions import FakeDistribution, installed


def problem_of(catalog: Catalog, slot: Slot, name: str) -> str:
    with pytest.raises(UserError) as caught:
        catalog.find(slot, name)
    (problem,) = caught.value.problems
    return str(problem)


def test_kind_of_two_distributions_must_be_qualified(tmp_path: Path):
    with installed(tmp_path, declares("dare-foo", "spg-x"), declares("dare-bar", "spg-x")):
        catalog = Catalog.load()
    owners = [item.distribution for item in catalog.components(Slot.ALGORITHM) if item.component.kind == "spg-x"]
    assert owners == ["dare-bar", "dare-foo"]
    assert problem_of(catalog, Slot.ALGORITHM, "spg-x") == (
        "algorithm 'spg-x' is offered by dare-bar 1.0 and dare-foo 1.0; "
        "write 'kind: dare-bar:spg-x' or 'kind: dare-foo:spg-x'"
    )
    assert catalog.find(Slot.ALGORITHM, "dare-foo:spg-x").distribution == "dare-foo"


def test_qualified_name_of_the_wrong_distribution_names_the_right_one(tmp_path: Path):
    with installed(tmp_path, declares("dare-foo", "mine"), declares("dare-bar", "other")):
        catalog = Catalog.load()
    text = problem_of(catalog, Slot.ALGORITHM, "dare-bar:mine")
    assert "dare-bar 1.0 does not offer it, but there is dare-foo:mine" in text
    assert "dare-fo is not installed, but there is dare-foo:mine" in problem_of(catalog, Slot.ALGORITHM, "dare-fo:mine")
    assert "unknown algorithm ':mine'; did you mean 'mine'?" in problem_of(catalog, Slot.ALGORITHM, ":mine")


def test_unknown_kind_names_near_kinds(tmp_path: Path):
    with installed(tmp_path, declares("dare-foo", "wobble")):
        assert "did you mean 'wobble'?" in problem_of(Catalog.load(), Slot.ALGORITHM, "woble")


def test_unknown_kind_of_an_official_package_says_what_to_install():
    catalog = Catalog.load(entry_points=[])
    assert "pip install dare-sdar" in problem_of(catalog, Slot.MODEL, "sdar")
    assert "did you mean 'sdar-moe' (pip install dare-sdar)" in problem_of(catalog, Slot.MODEL, "sdar-mo")
    assert "pip install dare-sdar" in problem_of(catalog, Slot.MODEL, "dare-sdar:sdar")


def test_official_kind_that_an_old_release_lacks_asks_for_an_upgrade(tmp_path: Path):
    with installed(tmp_path, declares("dare-lmdeploy", "old", hook="dare_rollout_backends", version="0.0.1")):
        text = problem_of(Catalog.load(), Slot.ROLLOUT, "lmdeploy")
    assert "dare-lmdeploy 0.0.1 does not offer it; pip install --upgrade dare-lmdeploy" in text


def test_kind_of_a_broken_official_plugin_names_it_and_the_reason(tmp_path: Path):
    with installed(tmp_path, FakeDistribution(name="dare-lmdeploy", source="import nowhere_at_all\n")):
        text = problem_of(Catalog.load(), Slot.ROLLOUT, "lmdeploy")
    assert "its plugin dare-lmdeploy 1.0 is not loaded" in text
    assert "nowhere_at_all" in text


def test_kind_that_a_rejected_plugin_declared_names_it_and_the_reason(tmp_path: Path):
    body = "@hookimpl\ndef dare_algorithms():\n    yield component('half')\n    raise RuntimeError('boom')\n"
    with installed(tmp_path, plugin("dare-half", body)):
        text = problem_of(Catalog.load(), Slot.ALGORITHM, "half")
    assert "dare-half 1.0" in text
    assert "boom" in text


def test_qualified_kind_of_a_broken_plugin_names_the_reason(tmp_path: Path):
    with installed(tmp_path, FakeDistribution(name="dare-gone", source="raise SystemExit\n")):
        text = problem_of(Catalog.load(), Slot.ALGORITHM, "dare-gone:any")
    assert "import-error: cannot import dare_gone.plugin: SystemExit" in text


def test_unknown_kind_names_plugins_that_did_not_load(tmp_path: Path):
    with installed(tmp_path, FakeDistribution(name="dare-gone", source="raise SystemExit\n")):
        assert "dare-gone 1.0 (import-error)" in problem_of(Catalog.load(), Slot.ALGORITHM, "something-else")


SECTIONS = """
from dare_core.api import SectionConfig
from pydantic import ConfigDict
class Good(SectionConfig):
    pass
class Loose(SectionConfig):
    model_config = ConfigDict(extra="ignore")
class Unrelated:
    pass
"""
REWARDS = """
from dare_core.interfaces import Reward
class Good(Reward):
    def judge(self, prompts, responses):
        return []
class Unfinished(Reward):
    pass
"""


def reward(catalog_folder: Path, target: str, config: str = "Good") -> tuple[Catalog, str]:
    body = (
        "@hookimpl\ndef dare_rewards():\n"
        f"    return [Component(kind='r', target='dare_r.rewards:{target}', config='dare_r.sections:{config}',"
        " summary='s')]\n"
    )
    files = {"rewards.py": REWARDS, "sections.py": SECTIONS}
    plugin("dare-r", body, files=files).write(catalog_folder)
    return Catalog.load(), "r"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("Absent", "has no attribute 'Absent'"),
        ("Unrelated", "must be a subclass of SectionConfig"),
        ("Loose", "must forbid unknown keys"),
    ],
)
def test_config_class_that_breaks_the_contract_names_the_plugin(tmp_path: Path, config: str, reason: str):
    with installed(tmp_path):
        catalog, kind = reward(tmp_path, "Good", config)
        with pytest.raises(PluginError, match=f"reward 'r' of dare-r 1.0.*{reason}"):
            catalog.config_class(catalog.find(Slot.REWARD, kind))


def test_target_that_is_unfinished_names_the_missing_methods(tmp_path: Path):
    with installed(tmp_path):
        catalog, kind = reward(tmp_path, "Unfinished")
        with pytest.raises(PluginError, match="lacks judge of Reward"):
            catalog.target_class(catalog.find(Slot.REWARD, kind))


def test_good_component_gives_its_classes(tmp_path: Path):
    with installed(tmp_path):
        catalog, kind = reward(tmp_path, "Good")
        found = catalog.find(Slot.REWARD, kind)
        assert issubclass(catalog.config_class(found), SectionConfig)
        assert catalog.target_class(found).__name__ == "Good"


def test_first_plugin_in_order_of_names_detects_the_model_and_a_failing_one_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    detect = "@hookimpl\ndef dare_detect_model(config):\n    return {}\n"
    fakes = [
        plugin("dare-a", detect.format("1 / 0")),
        plugin("dare-b", detect.format("'b' if config['model_type'] == 'probe' else None")),
        plugin("dare-c", detect.format("'c'")),
    ]
    with installed(tmp_path, *fakes), caplog.at_level(logging.WARNING):
        assert Catalog.load().detect_model({"model_type": "probe"}) == "b"
    assert "dare-a failed to look at the model's config.json: ZeroDivisionError" in caplog.text


def test_checks_of_all_plugins_are_collected_and_a_failing_check_is_a_problem(tmp_path: Path):
    check = "@hookimpl\ndef dare_check_run(plan):\n    {}\n"
    fakes = [
        plugin("dare-a", check.format("return [Problem('too long', path='rollout.new_tokens')]")),
        plugin("dare-b", check.format("raise KeyError('x')")),
        plugin("dare-c", check.format("return ['text']")),
    ]
    with installed(tmp_path, *fakes):
        plan = RunPlan(run=RunSection(name="t", steps=1), optim=OptimSection(batch_size=1), peft=None, choices={})
        problems = Catalog.load().check_run(plan)
    assert problems[0] == Problem("too long", path="rollout.new_tokens")
    assert problems[1].message == "dare-b could not check this run: KeyError: 'x'"
    assert problems[2].message.startswith("dare-c could not check this run")


def test_failing_observer_is_a_warning_and_others_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    observe = "seen = []\n@hookimpl\ndef dare_run_started(event):\n    {}\n"
    with installed(
        tmp_path,
        plugin("dare-a", observe.format("raise ValueError('no disk')")),
        plugin("dare-b", observe.format("seen.append(event)")),
    ):
        catalog = Catalog.load()
        with caplog.at_level(logging.WARNING):
            catalog.notify("dare_run_started", "event")
        from dare_b.plugin import seen  # type: ignore[import-not-found]
    assert seen == ["event"]
    assert "dare-a failed in dare_run_started: ValueError: no disk" in caplog.text


def test_only_observing_hooks_can_be_notified():
    with pytest.raises(ValueError, match="dare_run_started"):
        Catalog.load(entry_points=[]).notify("dare_algorithms", None)


def test_hook_calls_are_traced_with_arguments_and_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("DARE_TRACE_HOOKS", "1")
    body = "@hookimpl\ndef dare_detect_model(config):\n    return 'probe'\n"
    with installed(tmp_path, plugin("dare-probe", body)):
        Catalog.load().detect_model({"model_type": "p"})
    traced = capsys.readouterr().err
    assert "hook dare_detect_model(config={'model_type': 'p'}) -> dare-probe" in traced
    assert "hook dare_detect_model returned 'probe'" in traced
