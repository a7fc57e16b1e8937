"""``dare validate``, ``dare show`` and ``dare schema`` as people and programs meet them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.spec_plugins import SPEC, Specs, pretend_site, write_world

from dare_core.spec.show import shown
from dare_core.testing.command import CommandResult, run_dare_here


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    write_world(tmp_path / "work")
    (tmp_path / "work" / "spec.yaml").write_text(SPEC)
    with pretend_site(tmp_path / "site"):
        yield tmp_path / "work"


def dare(world: Path, *arguments: str) -> CommandResult:
    return run_dare_here(*arguments, folder=world)


def test_valid_spec_is_summed_up_in_one_line(world: Path):
    done = dare(world, "validate", "spec.yaml")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == (
        "ok: group-pg on toy (toy), jsonl rows.jsonl, native rollouts judged by match, 5 steps with batches of 24, "
        "lora r=128\n"
    )


def test_wrong_spec_exits_2_with_one_line_per_problem(world: Path):
    (world / "spec.yaml").write_text(SPEC.replace("group-pg", "{kind: grop-pg, clip_rang: 0.2}"))
    done = dare(world, "validate", "spec.yaml")
    assert (done.code, done.stdout) == (2, "")
    assert [line[:12] for line in done.stderr.splitlines()] == ["spec.yaml:6:", "spec.yaml:6:"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "content", [b"", b"a: [", b"\xff", b"- 1", b"dare: 1", b"dare: one\nrun: []\nmodel: {kind: {}}"]
)
def test_broken_files_exit_2_without_a_traceback(world: Path, content: bytes):
    (world / "spec.yaml").write_bytes(content)
    for command in ("validate", "show"):
        done = dare(world, command, "spec.yaml")
        assert done.code == 2
        assert "spec.yaml" in done.stderr
        assert "Traceback" not in done.stderr


def test_problems_come_as_json_on_request(world: Path):
    done = dare(world, "validate", "spec.yaml", "--set", "optim.lrr=1", "--json")
    assert done.code == 2
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem["path"] == "optim.lrr"
    assert problem["where"] == "--set optim.lrr=1"


def test_overlays_and_sets_reach_validation(world: Path):
    (world / "a.yaml").write_text("run: {steps: 7}\noptim: {batch_size: 6}\n")
    (world / "b.yaml").write_text("optim: {batch_size: 12}\n")
    done = dare(world, "validate", "spec.yaml", "-f", "a.yaml", "-f", "b.yaml", "--set", "peft=null")
    assert "7 steps with batches of 12, full training" in done.stdout


def test_show_prints_each_value_with_its_origin(world: Path):
    (world / "over.yaml").write_text("optim: {lr: 1e-5}\n")
    done = dare(world, "show", "spec.yaml", "-f", "over.yaml", "--set", "run.seed=3")
    lines = {
        line.partition(":")[0].strip() + line.partition("#")[1] + line.partition("#")[2]
        for line in done.stdout.splitlines()
    }
    assert {
        "steps# spec.yaml:2",
        "seed# --set run.seed=3",
        "lr# overlay over.yaml:1",
        "temperature# algorithm group-pg",
        "top_k# likelihood one-step-x",
        "weight_decay# default",
    } <= lines


def test_show_as_json_gives_values_and_origins(world: Path):
    data = json.loads(dare(world, "show", "spec.yaml", "--json").stdout)
    assert data["resolved"]["algorithm"]["kind"] == "group-pg"
    assert data["origins"]["optim.lr"] == {"source": "algorithm", "where": "group-pg", "value": 3e-6}


def test_what_show_prints_is_a_spec_of_the_same_plan(specs: Specs):
    spec = SPEC.replace("match", "{kind: sum, parts: [{kind: match, weight: 2}, match]}")
    spec = spec.replace('"{q}"', '[{role: user, content: "yes\\n- a: b # c"}, {role: system, content: "1e3"}]')
    plan = specs.plan(spec + "eval: [{kind: quiz, data: {path: rows.jsonl, prompt: '{q}'}}]\n")
    assert specs.plan(shown(plan)).resolved == plan.resolved


def test_schema_goes_to_a_file(world: Path):
    assert dare(world, "schema", "-o", "schema.json").code == 0
    assert json.loads((world / "schema.json").read_text())["$schema"].endswith("2020-12/schema")
    assert dare(world, "schema", "-o", "nowhere/schema.json").code == 2


def test_validation_imports_nothing_heavy(world: Path):
    heavy = ("torch", "transformers", "numpy", "jsonschema", "datasets", "pyarrow")
    code = (
        "import sys; from dare_core.cli.main import main; code = main(['validate', 'spec.yaml']);"
        f"print(code, [name for name in {heavy!r} if name in sys.modules])"
    )
    path = str(world.parent / "site")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}); {code}"],
        cwd=world,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0 []"
