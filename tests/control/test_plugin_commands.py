"""The command line: listing, matrix, exit codes, switches and plugins' own commands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.control.fake_plugins import BROKEN, declares, plugin

from dare_core.cli import group
from dare_core.commands import COMMANDS
from dare_core.official import OFFICIAL
from dare_core.testing.command import CommandResult, run_dare, run_dare_here
from dare_core.testing.fake_distributions import FakeDistribution, installed


@pytest.fixture(scope="module")
def broken_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All broken plugins beside a good one."""
    site = tmp_path_factory.mktemp("site")
    for distribution in (declares("dare-good", "good"), *(case.distribution for case in BROKEN)):
        distribution.write(site)
    return site


def test_list_shows_every_broken_plugin_in_one_line_and_exits_0(tmp_path: Path, broken_site: Path):
    result = run_dare("plugins", "list", folder=tmp_path, python_path=[broken_site])
    assert result.code == 0
    for case in BROKEN:
        lines = [line for line in result.stdout.splitlines() if line.split()[:1] == [case.distribution.name]]
        assert len(lines) == 1
        assert all(text in lines[0] for text in ("1.0", case.status, case.reason))
    assert "good" in result.stdout


def test_help_works_beside_broken_plugins(tmp_path: Path, broken_site: Path):
    result = run_dare("--help", folder=tmp_path, python_path=[broken_site])
    assert result.code == 0
    assert result.stderr == ""
    assert all(name in result.stdout for name in COMMANDS)


def test_strict_lists_the_broken_plugins_and_exits_1(tmp_path: Path, broken_site: Path):
    result = run_dare("--strict", "plugins", "list", folder=tmp_path, python_path=[broken_site])
    assert result.code == 1
    assert "dare-exits 1.0: import-error" in result.stderr
    assert "dare-good" in result.stdout


def test_strict_refuses_before_a_command_starts(tmp_path: Path):
    with installed(tmp_path / "site", FakeDistribution(name="dare-exits", source="raise SystemExit\n")):
        result = run_dare_here("--strict", "run", "no-such-spec.yaml", folder=tmp_path)
    assert result.code == 1
    assert "dare-exits 1.0: import-error" in result.stderr
    assert "no-such-spec" not in result.stderr


def test_strict_accepts_what_is_switched_off(tmp_path: Path):
    with installed(tmp_path / "site", FakeDistribution(name="dare-exits", source="raise SystemExit\n")):
        result = run_dare_here("plugins", "list", "--strict", "--json", folder=tmp_path)
        switched = run_dare_here("--no-third-party", "plugins", "list", "--strict", "--json", folder=tmp_path)
    assert result.code == 1
    assert reported(switched, "dare-exits")["status"] == "disabled"
    assert "dare-exits" not in switched.stderr


SPEC = """
dare: 1
run: {name: x, steps: 1}
model: {kind: dare-exits:some-model, path: nowhere}
data: {kind: jsonl, path: rows.jsonl, prompt: "{question}"}
algorithm: {kind: half}
optim: {batch_size: 2}
"""


def test_spec_that_needs_broken_plugins_fails_naming_them_and_the_reasons(tmp_path: Path, broken_site: Path):
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    result = run_dare("validate", "spec.yaml", folder=tmp_path, python_path=[broken_site])
    assert result.code == 2
    assert "dare-exits 1.0 is not loaded" in result.stderr
    assert "dare-half-way 1.0 is not loaded" in result.stderr
    assert "half way" in result.stderr


def reported(result: CommandResult, name: str) -> dict[str, object]:
    return next(item for item in json.loads(result.stdout)["plugins"] if item["distribution"] == name)


def test_flag_switches_off_one_plugin_for_one_call_only(tmp_path: Path):
    with installed(tmp_path / "site", declares("dare-one", "first"), declares("dare-two", "second")):
        off = run_dare_here("--disable-plugin", "dare-two", "plugins", "list", "--json", folder=tmp_path)
        after = run_dare_here("plugins", "list", "--json", folder=tmp_path)
    assert reported(off, "dare-two")["status"] == "disabled"
    assert reported(off, "dare-one")["status"] == "ok"
    assert reported(after, "dare-two")["status"] == "ok"
    assert "DARE_DISABLE_PLUGINS" not in os.environ


def test_switching_off_a_plugin_that_is_not_there_is_said(tmp_path: Path):
    result = run_dare("--disable-plugin", "dare-typo", "plugins", "list", folder=tmp_path)
    assert result.code == 0
    assert "no installed plugin is called dare-typo" in result.stderr


def test_json_listing_names_kinds_by_slot_with_their_capabilities(tmp_path: Path):
    body = "@hookimpl\ndef dare_model_adapters():\n    return [component('probe', provides={'masked', 'token-logp'})]\n"
    with installed(tmp_path / "site", plugin("dare-probe", body)):
        result = run_dare_here("plugins", "list", "--json", folder=tmp_path)
    (component,) = reported(result, "dare-probe")["components"]  # type: ignore[misc]
    assert component["slot"] == "model"
    assert component["qualified"] == "dare-probe:probe"
    assert component["provides"] == ["masked", "token-logp"]


def matrix_of(folder: Path, *distributions: FakeDistribution) -> dict[str, dict[tuple[str, str], dict[str, object]]]:
    only_core = {"DARE_DISABLE_PLUGINS": ",".join(OFFICIAL)}
    with installed(folder / "site", *distributions):
        found = json.loads(run_dare_here("plugins", "matrix", "--json", folder=folder, environment=only_core).stdout)
    return {
        "models": {(cell["algorithm"], cell["model"]): cell for cell in found["models"]},
        "rollouts": {(cell["algorithm"], cell["rollout"]): cell for cell in found["rollouts"]},
    }


def test_matrix_names_the_capability_that_is_missing(tmp_path: Path):
    models = (
        "@hookimpl\ndef dare_model_adapters():\n    return [component('m-masked', provides={'masked'}),"
        " component('m-block', provides={'block'})]\n"
        "@hookimpl\ndef dare_rollout_backends():\n    return [component('r-plain', provides={'sampling'})]\n"
    )
    algorithms = (
        "@hookimpl\ndef dare_algorithms():\n    return [component('a-masked', needs={'masked'}),"
        " component('a-replay', needs={'sampling', 'commit-step'}),"
        " component('a-spread', needs={'multi-process'}), component('a-offline', needs={'demonstrations'})]\n"
    )
    cells = matrix_of(tmp_path, plugin("dare-m", models), plugin("dare-a", algorithms))
    assert cells["models"]["a-masked", "m-masked"]["works"] is True
    assert cells["models"]["a-masked", "m-block"]["missing"] == ["masked"]
    assert cells["models"]["a-spread", "m-block"]["missing"] == ["multi-process (engine)"]
    assert cells["rollouts"]["a-replay", "r-plain"]["missing"] == ["commit-step"]
    assert cells["rollouts"]["a-replay", "native"]["works"] is True
    assert cells["rollouts"]["a-offline", "native"]["works"] is None


def test_matrix_counts_what_the_default_estimator_needs(tmp_path: Path):
    body = (
        "@hookimpl\ndef dare_model_adapters():\n    return [component('m')]\n"
        "@hookimpl\ndef dare_likelihood_estimators():\n    return [component('e', needs={'block'})]\n"
        "@hookimpl\ndef dare_algorithms():\n    return [component('a', defaults={'likelihood.kind': 'e'}),"
        " component('b', defaults={'likelihood.kind': 'absent'})]\n"
    )
    cells = matrix_of(tmp_path, plugin("dare-m", body))
    assert cells["models"]["a", "m"]["missing"] == ["block"]
    assert cells["models"]["b", "m"]["missing"] == ["likelihood estimator 'absent'"]


COMMAND = """
import sys
from dare_core.errors import DareError, Problem, UserError

def greet(arguments):
    sys.stdout.write(f"hello {arguments}\\n")
    return 7

def wrong(arguments):
    raise UserError([Problem("first", where="spec.yaml:3", path="a.b"), Problem("second")])

def refused(arguments):
    raise DareError("it cannot be done")

def crash(arguments):
    raise ValueError("a bug\\nof two lines")

def interrupted(arguments):
    raise KeyboardInterrupt
"""


@pytest.fixture
def commands(tmp_path: Path):
    """A plugin with commands that end in every way."""
    listed = ", ".join(
        f"Component(kind='{name}', target='dare_speak.commands:{name}', config='', summary='Speaks.')"
        for name in ("greet", "wrong", "refused", "crash", "interrupted")
    )
    body = f"@hookimpl\ndef dare_commands():\n    return [{listed}]\n"
    with installed(tmp_path / "site", plugin("dare-speak", body, files={"commands.py": COMMAND})):
        yield


@pytest.mark.usefixtures("commands")
def test_plugin_command_is_listed_and_gets_its_arguments_as_they_are(tmp_path: Path):
    assert "Speaks. (dare-speak)" in run_dare_here("--help", folder=tmp_path).stdout
    result = run_dare_here("greet", "--loud", "x", "--help", folder=tmp_path)
    assert result.code == 7
    assert result.stdout == "hello ['--loud', 'x', '--help']\n"


@pytest.mark.usefixtures("commands")
def test_wrong_input_exits_2_with_one_line_per_problem(tmp_path: Path):
    result = run_dare_here("wrong", folder=tmp_path)
    assert result.code == 2
    assert result.stderr.splitlines() == ["spec.yaml:3: a.b: first", "second"]


@pytest.mark.usefixtures("commands")
def test_wrong_input_is_json_where_json_was_asked_for(tmp_path: Path):
    result = run_dare_here("wrong", "--json", folder=tmp_path)
    assert result.code == 2
    assert json.loads(result.stdout)["problems"][0] == {
        "message": "first",
        "path": "a.b",
        "where": "spec.yaml:3",
        "hint": None,
    }


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("refused", 1, "it cannot be done\n"),
        ("crash", 1, "unexpected ValueError: a bug of two lines; run with --traceback"),
        ("interrupted", 130, "interrupted\n"),
    ],
)
def test_other_failures_have_a_message_and_an_exit_code(tmp_path: Path, name: str, code: int, text: str):
    result = run_dare_here(name, folder=tmp_path)
    assert result.code == code
    assert text in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.usefixtures("commands")
def test_traceback_is_shown_when_asked_for(tmp_path: Path):
    assert "commands.py" in run_dare_here("--traceback", "crash", folder=tmp_path).stderr


def test_misspelt_command_names_the_nearest_one(tmp_path: Path):
    result = run_dare_here("validat", folder=tmp_path)
    assert result.code == 2
    assert "unknown command 'validat'; did you mean 'validate'?" in result.stderr


def test_unknown_option_is_a_usage_error(tmp_path: Path):
    assert run_dare_here("plugins", "list", "--nope", folder=tmp_path).code == 2


def test_two_commands_of_one_name_are_listed_and_called_qualified(tmp_path: Path):
    fakes = [
        plugin(
            name,
            "@hookimpl\ndef dare_commands():\n    return [Component(kind='greet', summary='s', config='',"
            f" target='{name.replace('-', '_')}.plugin:run')]\n"
            f"def run(arguments):\n    raise SystemExit({code})\n",
        )
        for name, code in (("dare-x", 4), ("dare-y", 5))
    ]
    with installed(tmp_path / "site", *fakes):
        ambiguous = run_dare_here("greet", folder=tmp_path)
        chosen = run_dare_here("dare-y:greet", folder=tmp_path)
    assert ambiguous.code == 2
    assert "dare-x 1.0 and dare-y 1.0" in ambiguous.stderr
    assert chosen.code == 5


@pytest.mark.parametrize("name", COMMANDS)
def test_listed_commands_exist_and_explain_themselves(name: str):
    command = group.LazyGroup(name="dare").get_command(None, name)
    assert command.help
