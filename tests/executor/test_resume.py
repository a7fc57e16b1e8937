"""Resuming is exact: files and weights equal those of a run that was never interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from tests.executor.toy_runs import TOYS, metrics_of, offline_spec, online_spec, weights_of, write_spec

from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed

LORA = {"kind": "lora", "r": 2, "alpha": 4}
HELD_OUT = {"kind": "held-out", "every": 3, "data": {"kind": "jsonl", "path": "held.jsonl", "prompt": "{question}"}}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("site"), TOYS) as folder:
        yield folder


SPECS = {
    "online": online_spec(run__steps=10, run__save_every=4, run__keep_checkpoints=9, eval=[HELD_OUT]),
    "online with adapters": online_spec(run__steps=10, run__save_every=4, peft=LORA, run__keep_checkpoints=9),
    "offline": offline_spec(run__steps=10, run__save_every=4, run__keep_checkpoints=9, optim__schedule="cosine"),
    "offline by length": offline_spec(run__steps=10, run__save_every=4, data__group_by_length=2),
}


@pytest.mark.parametrize("name", SPECS)
def test_four_steps_and_a_resume_equal_ten_steps_bit_for_bit(tmp_path, site, name):
    for folder in ("whole", "parts"):
        write_spec(tmp_path / folder, SPECS[name])
    assert run_dare_here("run", "spec.yaml", folder=tmp_path / "whole").code == 0
    whole, parts = tmp_path / "whole/runs/toy", tmp_path / "parts/runs/toy"
    # Six steps, of which the last two are lost with the process, as after a kill.
    assert run_dare_here("run", "spec.yaml", "--to-step", "6", folder=tmp_path / "parts").code == 0
    kill_after_checkpoint(parts, 4)
    result = run_dare_here("resume", "runs/toy", folder=tmp_path / "parts")
    assert result.code == 0, result.stderr
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    for sub in ("samples", "eval"):
        files = sorted(p.relative_to(whole) for p in whole.glob(f"{sub}/**/*") if p.is_file())
        assert files == sorted(p.relative_to(parts) for p in parts.glob(f"{sub}/**/*") if p.is_file())
        assert all((whole / f).read_bytes() == (parts / f).read_bytes() for f in files)
    for step in (8, 10):
        first, second = weights_of(whole, step), weights_of(parts, step)
        assert all(torch.equal(first[key], second[key]) for key in first)
    ledgers = [json.loads((run / "ledger.json").read_text()) for run in (whole, parts)]
    for counter in ("forwards", "forward_tokens", "backward_tokens", "generated_tokens"):
        assert ledgers[0][counter] == ledgers[1][counter]
    assert json.loads((parts / "manifest.json").read_text())["resumes"][0]["step"] == 4


def kill_after_checkpoint(run, step):
    """Leave the run as a kill would have: later checkpoints are gone, the state still says running."""
    import shutil

    for checkpoint in (run / "checkpoints").glob("step_*"):
        if int(checkpoint.name.removeprefix("step_")) > step:
            shutil.rmtree(checkpoint)


def test_resume_takes_only_as_many_steps_as_asked(tmp_path, site):
    write_spec(tmp_path, online_spec(run__steps=4, run__save_every=1))
    run_dare_here("run", "spec.yaml", "--to-step", "1", folder=tmp_path)
    result = run_dare_here("resume", "runs/toy", "--to-step", "3", folder=tmp_path)
    assert "interrupted at step 3 in runs/toy: step 3 is saved; go on with 'dare resume runs/toy'" in result.stdout
    assert len(metrics_of(tmp_path / "runs/toy")) == 3


def test_a_finished_run_is_not_resumed(tmp_path, site):
    write_spec(tmp_path, online_spec(run__steps=1))
    run_dare_here("run", "spec.yaml", folder=tmp_path)
    result = run_dare_here("resume", "runs/toy", folder=tmp_path)
    assert result.code == 2
    assert "the run is finished: 1 of 1 steps are done" in result.stderr


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path, site):
    import shutil

    write_spec(tmp_path, online_spec(run__steps=2))
    run_dare_here("run", "spec.yaml", folder=tmp_path)
    before = (tmp_path / "runs/toy/metrics.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "runs/toy/checkpoints")
    result = run_dare_here("resume", "runs/toy", folder=tmp_path)
    assert result.code == 0, result.stderr
    assert (tmp_path / "runs/toy/metrics.jsonl").read_bytes() == before


def test_other_data_under_the_same_name_is_refused(tmp_path, site):
    write_spec(tmp_path, online_spec(run__steps=4))
    run_dare_here("run", "spec.yaml", "--to-step", "2", folder=tmp_path)
    (tmp_path / "train.jsonl").write_text('{"question": "ab"}\n{"question": "ba"}\n{"question": "ca"}\n')
    result = run_dare_here("resume", "runs/toy", folder=tmp_path)
    assert result.code == 2
    assert "the data changed since the run began" in result.stderr


def test_an_altered_checkpoint_is_refused(tmp_path, site):
    write_spec(tmp_path, online_spec(run__steps=4))
    run_dare_here("run", "spec.yaml", "--to-step", "2", folder=tmp_path)
    path = tmp_path / "runs/toy/checkpoints/step_2/trainer/weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = run_dare_here("resume", "runs/toy", folder=tmp_path)
    assert result.code == 2
    assert "the content was altered after it was written" in result.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, site, number, code):
    write_spec(tmp_path, online_spec(run__steps=3, reward__function="dare_toys.rewards:interrupting"))
    assert run_dare_here("run", "spec.yaml", folder=tmp_path).code == 0
    whole = (tmp_path / "runs/toy/metrics.jsonl").read_bytes()
    (tmp_path / "signal").write_text(str(int(number)))
    result = run_dare_here("run", "spec.yaml", "--set", "run.name=second", folder=tmp_path)
    assert result.code == code
    assert "interrupted at step 1" in result.stdout
    assert "go on with 'dare resume runs/second'" in result.stdout
    state = json.loads((tmp_path / "runs/second/state.json").read_text())
    assert (state["status"], state["step"]) == ("interrupted", 1)
    assert run_dare_here("resume", "runs/second", folder=tmp_path).code == 0
    assert (tmp_path / "runs/second/metrics.jsonl").read_bytes() == whole


def test_a_killed_process_resumes_to_the_same_files(tmp_path, site):
    write_spec(tmp_path / "whole", online_spec(run__steps=6, run__save_every=1))
    spec = online_spec(run__steps=6, run__save_every=1, reward__function="dare_toys.rewards:slow")
    write_spec(tmp_path / "killed", spec)
    start = "import sys; from dare_core.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        [sys.executable, "-c", start, "run", "spec.yaml"], cwd=tmp_path / "killed", env=environment
    )
    run = tmp_path / "killed/runs/toy"
    deadline = time.monotonic() + 60
    while not (run / "checkpoints/step_2").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert json.loads((run / "state.json").read_text())["status"] == "running"
    result = run_dare_here("resume", "runs/toy", folder=tmp_path / "killed")
    assert result.code == 0, result.stderr
    run_dare_here("run", "spec.yaml", folder=tmp_path / "whole")
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "whole/runs/toy/metrics.jsonl").read_bytes()


def test_a_second_signal_ends_at_once_and_the_run_can_go_on(tmp_path, site):
    write_spec(tmp_path, online_spec(run__steps=3, run__save_every=1, reward__function="dare_toys.rewards:twice"))
    (tmp_path / "signal").write_text("2")
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 130
    state = json.loads((tmp_path / "runs/toy/state.json").read_text())
    assert (state["status"], state["step"]) == ("interrupted", 0)
    assert "nothing is saved yet" in state["message"]
    assert run_dare_here("resume", "runs/toy", folder=tmp_path).code == 0


def test_a_run_whose_loss_is_not_finite_is_marked_failed(tmp_path, site):
    write_spec(tmp_path, offline_spec(run__steps=30, optim__lr=1e300, optim__clip_norm=None, run__save_every=1))
    result = run_dare_here("run", "spec.yaml", folder=tmp_path)
    assert result.code == 1
    assert "training step" in result.stderr
    assert json.loads((tmp_path / "runs/toy/state.json").read_text())["status"] == "failed"
