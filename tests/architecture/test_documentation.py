"""The pages for plugin authors say what the code says, and their example works."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.architecture.project import ROOT

from dare_core.capabilities import VOCABULARY
from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.hookspecs import DECLARATIONS, OBSERVERS
from dare_core.plugins import PluginStatus
from dare_core.plugins.checks import hook_arguments
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import FakeDistribution, installed
from dare_core.types import Prompt

PAGES = ROOT / "docs" / "extending"


def page(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def test_every_hook_is_documented_with_its_exact_arguments():
    text = page("hooks.md")
    calls = [f"{name}({', '.join(arguments)})" for name, arguments in hook_arguments().items()]
    assert [call for call in calls if f"`{call}`" not in text] == []


def test_every_declaration_is_documented_with_its_slot():
    text = page("hooks.md")
    for hook, slot in DECLARATIONS.items():
        shown = "none" if slot is Slot.COMMAND else f"`{slot.value}`"
        assert f"| `{hook}()` | {shown} |" in text


def test_every_hook_either_declares_asks_or_observes():
    assert set(hook_arguments()) == {*DECLARATIONS, *OBSERVERS, "dare_detect_model", "dare_check_run"}


def test_every_capability_is_documented_with_its_slot_and_meaning():
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| (.*) \|$", page("capabilities.md"), flags=re.MULTILINE)
    assert {word: (slot, meaning) for word, slot, meaning in rows} == {
        word: (slot.value, meaning) for word, (slot, meaning) in VOCABULARY.items()
    }


def test_every_plugin_status_is_documented():
    assert [status for status in PluginStatus if f"| `{status}` |" not in page("README.md")] == []


def test_examples_of_hooks_are_accepted_by_the_loader(tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```", page("hooks.md"), flags=re.DOTALL)
    with installed(tmp_path, FakeDistribution(name="dare-mine", source="\n".join(blocks))):
        catalog = Catalog.load()
        assert catalog.find(Slot.ALGORITHM, "my-method").distribution == "dare-mine"
        assert catalog.detect_model({"model_type": "my_family"}) == "my-family"


def tutorial_plugin() -> FakeDistribution:
    """The package that the page writes down, file by file."""
    files = dict(re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)```$", page("README.md"), flags=re.DOTALL | re.MULTILINE))
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    package = {name.removeprefix("src/dare_brevity/"): text for name, text in files.items()}
    return FakeDistribution(
        name=project["name"],
        version=project["version"],
        requires=project["dependencies"],
        entry_points=project["entry-points"]["dare.v1"],
        source=package.pop("plugin.py"),
        files=package,
    )


def test_plugin_of_the_tutorial_is_listed_and_judges(tmp_path: Path):
    with installed(tmp_path / "site", tutorial_plugin()):
        listing = run_dare_here("plugins", "list", folder=tmp_path).stdout
        assert re.search(r"dare-brevity +0\.1\.0 +ok +brevity", listing)
        catalog = Catalog.load()
        found = catalog.find(Slot.REWARD, "brevity")
        reward = catalog.target_class(found)(catalog.config_class(found)(words=3))
        prompt = Prompt(id="p", index=0, text="Why?")
        verdicts = reward.judge([prompt, prompt], ["because", "well, it is a long story"])
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0]
