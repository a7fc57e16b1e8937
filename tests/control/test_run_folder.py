"""The run folder: layout, single writer, and what a resume rewinds."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from dare_core.components import Slot
from dare_core.errors import UserError
from dare_core.run.folder import Best, RunFolder, RunState
from dare_core.run.ledger import Ledger
from dare_core.run.manifest import model_fingerprint
from dare_core.spec.plan import Choice, RunPlan
from dare_core.spec.sections import OptimSection, RunSection


@dataclass
class Report:
    distribution: str = "dare-foo"
    version: str = "1.2"
    status: str = "ok"
    reason: str = ""


def plan_for(folder: Path, name: str = "first") -> RunPlan:
    from dare_core.builtin import dare_rewards
    from dare_core.rewards.config import MatchSection

    match = next(component for component in dare_rewards() if component.kind == "match")
    return RunPlan(
        run=RunSection(name=name, folder=str(folder), steps=10, seed=7),
        optim=OptimSection(batch_size=2),
        peft=None,
        choices={Slot.REWARD: Choice(component=match, distribution="dare-core 0.1.0", config=MatchSection())},
        resolved={"dare": 1, "run": {"name": name, "steps": 10}, "optim": {"lr": 1e-06, "betas": (0.9, 0.999)}},
    )


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    spec, overlay = tmp_path / "spec.yaml", tmp_path / "small.yaml"
    spec.write_text("dare: 1  # a comment to keep\nrun: {name: first, steps: 100}\n")
    overlay.write_text("run: {steps: 10}")
    return [spec, overlay]


@pytest.fixture
def folder(tmp_path: Path, inputs: list[Path]) -> Iterator[RunFolder]:
    with RunFolder.create(plan_for(tmp_path / "runs"), inputs, [Report()], sets=["optim.lr=1e-6"]) as made:
        yield made


def test_a_new_run_folder_holds_what_began_it(folder: RunFolder, inputs: list[Path]) -> None:
    text = (folder.path / "spec" / "input.yaml").read_text()
    assert all(path.read_text().strip() in text for path in inputs)
    assert "# --set optim.lr=1e-6" in text
    assert [d for d in yaml.safe_load_all(text) if d] == [
        {"dare": 1, "run": {"name": "first", "steps": 100}},
        {"run": {"steps": 10}},
    ]
    assert folder.resolved()["optim"] == {"lr": 1e-06, "betas": [0.9, 0.999]}
    assert folder.state() == RunState("running", 0)
    assert folder.ledger() == Ledger()


def test_the_manifest_records_versions_seed_plugins_and_components(folder: RunFolder) -> None:
    manifest = folder.manifest()
    assert manifest["seed"] == 7
    assert {"dare-core", "pydantic"} <= manifest["packages"].keys()
    assert manifest["plugins"] == [{"distribution": "dare-foo", "version": "1.2", "status": "ok", "reason": ""}]
    assert manifest["components"]["reward"] == {"kind": "match", "distribution": "dare-core 0.1.0"}


def test_the_manifest_holds_no_environment_variable(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "s3cret-value")
    with RunFolder.create(plan_for(tmp_path / "runs"), inputs, []) as made:
        assert "s3cret-value" not in (made.path / "manifest.json").read_text()


def test_an_existing_run_is_refused_with_both_ways_out(folder: RunFolder, tmp_path: Path, inputs: list[Path]) -> None:
    with pytest.raises(UserError) as caught:
        RunFolder.create(plan_for(tmp_path / "runs"), inputs, [])
    text = str(caught.value)
    assert f"dare resume {folder.path}" in text
    assert f"dare run {inputs[0]} -f {inputs[1]} --set run.name=first-2" in text


def test_a_folder_of_something_else_is_refused_without_offering_to_resume(tmp_path: Path, inputs: list[Path]) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    with pytest.raises(UserError, match="is not a run folder") as caught:
        RunFolder.create(plan_for(tmp_path / "runs"), inputs, [])
    assert "dare resume" not in str(caught.value)


def test_a_failed_creation_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RunFolder.create(plan_for(tmp_path / "runs"), [tmp_path / "absent.yaml"], [])
    assert list((tmp_path / "runs").iterdir()) == []


def test_opening_a_missing_folder_names_the_runs_beside_it(folder: RunFolder) -> None:
    with pytest.raises(UserError, match="holds first"):
        RunFolder.open(folder.path.parent / "frist")


def test_opening_another_folder_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run folder: it has no manifest\.json"):
        RunFolder.open(tmp_path)


def test_a_second_writer_is_refused_in_this_process_but_may_read(folder: RunFolder) -> None:
    with pytest.raises(UserError, match="being written by this process"):
        RunFolder.open(folder.path)
    reader = RunFolder.open(folder.path, write=False)
    assert reader.state().step == 0
    with pytest.raises(ValueError, match="reading only"):
        reader.append_metrics(1, {})


def test_another_process_holds_the_folder_until_it_dies(folder: RunFolder) -> None:
    folder.close()
    script = "import sys; from dare_core.run.folder import RunFolder; f = RunFolder.open(sys.argv[1]); print('held')"
    holder = subprocess.Popen(
        [sys.executable, "-c", script + "; sys.stdout.flush(); sys.stdin.read()", str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == b"held"
        with pytest.raises(UserError, match=f"process {holder.pid}"):
            RunFolder.open(folder.path)
    finally:
        holder.kill()
        holder.communicate()
    assert (folder.path / ".lock").exists()
    RunFolder.open(folder.path).close()


def test_state_keeps_the_best_until_a_new_one_is_given(folder: RunFolder) -> None:
    best = Best("eval/reward", 0.5, 4)
    folder.set_state("running", 4, best=best)
    folder.set_state("interrupted", 5, "stopped by signal")
    assert folder.state() == RunState("interrupted", 5, "stopped by signal", best)


def run_steps(folder: RunFolder, begin: int, end: int) -> None:
    for step in range(begin, end + 1):
        folder.append_metrics(step, {"reward": step / 3, "odd": math.nan if step % 2 else 1.0})
        folder.write_samples(step, [{"id": "a", "text": f"ü {step}"}])
        if step % 2 == 0:
            folder.write_evaluation(
                step, "held-out", protocol={"seed": 1}, items=[{"id": "x"}], result={"reward": step}
            )
            with folder.checkpoint(step) as place:
                (place / "weights").write_text(str(step))
        folder.set_state("running", step)


def contents(folder: RunFolder) -> dict[str, bytes]:
    parts = ("metrics.jsonl", "samples", "eval", "checkpoints", "state.json")
    return {
        path.relative_to(folder.path).as_posix(): path.read_bytes()
        for path in sorted(folder.path.rglob("*"))
        if path.is_file() and path.relative_to(folder.path).parts[0] in parts
    }


def test_a_resumed_run_leaves_the_same_files_as_an_uninterrupted_one(tmp_path: Path, inputs: list[Path]) -> None:
    with RunFolder.create(plan_for(tmp_path / "runs", "whole"), inputs, []) as whole:
        run_steps(whole, 1, 6)
    with RunFolder.create(plan_for(tmp_path / "runs", "halves"), inputs, []) as halves:
        run_steps(halves, 1, 5)
        halves.set_state("failed", 5, "killed", best=Best("eval/reward", 9.0, 5))
    with (halves.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "rew')
    with RunFolder.open(halves.path) as resumed:
        latest = resumed.latest_checkpoint()
        assert latest is not None
        assert latest.step == 4
        resumed.rewind(latest.step)
        assert resumed.state().step == 4
        run_steps(resumed, 5, 6)
    assert contents(resumed) == contents(whole)


def test_evaluations_and_samples_are_strict_json(folder: RunFolder) -> None:
    place = folder.write_evaluation(0, "held-out", protocol={}, items=[{"s": [math.inf]}], result={"reward": math.nan})
    assert json.loads((place / "result.json").read_text(), parse_constant=pytest.fail) == {"reward": None}
    assert json.loads((place / "items.jsonl").read_text(), parse_constant=pytest.fail) == {"s": [None]}


def test_rewinding_drops_checkpoints_of_later_steps(folder: RunFolder) -> None:
    run_steps(folder, 1, 6)
    folder.rewind(2)
    assert [checkpoint.step for checkpoint in folder.checkpoints()] == [2]
    assert [line["step"] for line in folder.metrics()] == [1, 2]
    assert sorted(path.name for path in (folder.path / "eval").iterdir()) == ["step_2-held-out"]


def test_a_run_killed_before_its_first_checkpoint_begins_again_with_what_comes_before_training(
    folder: RunFolder,
) -> None:
    folder.write_evaluation(0, "held-out", protocol={}, items=[], result={"reward": 0.1})
    folder.append_metrics(0, {"held-out/reward": 0.1})
    folder.append_metrics(1, {"reward": 0.2})
    folder.rewind(0)
    assert folder.metrics() == []
    assert list((folder.path / "eval").iterdir()) == []
    folder.append_metrics(0, {"held-out/reward": 0.1})


def test_metrics_refuse_a_step_twice(folder: RunFolder) -> None:
    folder.append_metrics(1, {"a": 1.0})
    with pytest.raises(ValueError, match="rewind first"):
        folder.append_metrics(1, {"a": 1.0})


def test_a_line_cut_short_does_not_swallow_the_next_one(folder: RunFolder) -> None:
    folder.append_metrics(1, {"a": 1.0})
    folder.close()
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "a"')
    with RunFolder.open(folder.path) as again:
        again.append_metrics(2, {"a": 2.0})
        assert [line["step"] for line in again.metrics()] == [1, 2]


def test_a_broken_line_inside_the_metrics_is_named(folder: RunFolder) -> None:
    (folder.path / "metrics.jsonl").write_text('{"step": 1}\n{oops\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: not a JSON object"):
        folder.metrics()


def test_retention_keeps_the_best_of_the_state(folder: RunFolder) -> None:
    run_steps(folder, 1, 8)
    folder.set_state("running", 8, best=Best("eval/reward", 0.9, 4))
    assert folder.retain(1) == [2, 6]


def test_changed_data_is_refused_on_resume(folder: RunFolder) -> None:
    folder.add_fingerprints({"data": "a" * 64})
    folder.add_fingerprints({"data": "a" * 64, "model": "m" * 64})
    with pytest.raises(UserError, match="the data changed since the run began"):
        folder.add_fingerprints({"data": "b" * 64})
    assert folder.manifest()["fingerprints"] == {"data": "a" * 64, "model": "m" * 64}


def test_a_resume_is_recorded_and_changed_versions_are_returned(folder: RunFolder) -> None:
    path = folder.path / "manifest.json"
    manifest = json.loads(path.read_text())
    current = manifest["packages"]["pydantic"]
    manifest["packages"]["pydantic"] = "1.0"
    path.write_text(json.dumps(manifest))
    assert folder.record_resume(4, [Report()]) == [f"pydantic: 1.0, now {current}"]
    assert [entry["step"] for entry in folder.manifest()["resumes"]] == [4]


def test_a_model_fingerprint_sees_a_changed_weight_and_a_renamed_file(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    content = bytearray(bytes(range(256)) * 4096)
    weights.write_bytes(content)
    (tmp_path / "config.json").write_text("{}")
    first = model_fingerprint(tmp_path)
    assert model_fingerprint(tmp_path) == first
    weights.write_bytes(bytes(byte ^ 1 for byte in content))
    changed = model_fingerprint(tmp_path)
    weights.rename(tmp_path / "other.safetensors")
    assert len({first, changed, model_fingerprint(tmp_path)}) == 3


def test_the_run_room_imports_no_torch() -> None:
    script = (
        "import sys, dare_core.run.folder, dare_core.run.metrics, dare_core.data.examples, dare_core.data.batches, "
        "dare_core.data.jsonl, dare_core.data.parquet, dare_core.data.folders, dare_core.rewards.sum, "
        "dare_core.rewards.match, dare_core.rewards.python\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'pyarrow', 'datasets'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
