"""What a run trained can be taken out and used: exported folders, and generation by the decoder of training."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tests.executor.toy_runs import PROMPTS, TOYS, online_spec, write_spec

from dare_core.spec.sections import PeftSection
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import write_llada_checkpoint


@pytest.fixture(scope="module", autouse=True)
def toys(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("site"), TOYS):
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory, toys):
    """A folder with a full run and a run with adapters."""
    folder = tmp_path_factory.mktemp("trained")
    write_spec(folder, online_spec(run__name="full", run__steps=2, run__save_every=1, run__keep_best="reward/mean"))
    lora = online_spec(run__name="lora", run__steps=2, peft={"kind": "lora", "r": 2, "alpha": 4})
    write_spec(folder, lora, "lora.yaml")
    for spec in ("spec.yaml", "lora.yaml"):
        result = run_dare_here("run", spec, folder=folder)
        assert result.code == 0, result.stderr
    return folder


def test_export_writes_the_published_layout_of_the_last_checkpoint(trained, tmp_path):
    result = run_dare_here("export", "runs/full", "-o", str(tmp_path / "out"), folder=trained)
    assert result.stdout == f"model of step 2 written to {tmp_path / 'out'}\n"
    exported = load_file(tmp_path / "out/model.safetensors")
    last = load_file(trained / "runs/full/checkpoints/step_2/trainer/weights.safetensors")
    assert all(torch.equal(exported[name], last[name]) for name in ("bias", "table"))


def test_export_takes_a_named_or_the_best_checkpoint(trained, tmp_path):
    one = run_dare_here("export", "runs/full/checkpoints/step_1", "-o", str(tmp_path / "one"), "--json", folder=trained)
    assert json.loads(one.stdout)["step"] == 1
    best = json.loads((trained / "runs/full/state.json").read_text())["best"]["step"]
    result = run_dare_here("export", "runs/full", "--best", "-o", str(tmp_path / "best"), "--json", folder=trained)
    assert json.loads(result.stdout)["step"] == best


def test_export_writes_over_nothing(trained, tmp_path):
    result = run_dare_here("export", "runs/full", "-o", str(tmp_path), folder=trained)
    assert result.code == 2
    assert "nothing is written over" in result.stderr


def test_an_adapter_is_exported_alone_or_merged_into_a_model(trained, tmp_path):
    alone = run_dare_here("export", "runs/lora", "-o", str(tmp_path / "adapter"), folder=trained)
    assert alone.stdout.startswith("adapter of step 2")
    assert (tmp_path / "adapter/adapter_model.safetensors").is_file()
    merged = run_dare_here("export", "runs/lora", "--merge", "-o", str(tmp_path / "model"), folder=trained)
    assert merged.code == 0, merged.stderr
    low = load_file(tmp_path / "adapter/adapter_model.safetensors")
    base = run_dare_here("export", "runs/full", "-o", str(tmp_path / "full"), folder=trained)
    assert base.code == 0
    assert low["b"].abs().sum() > 0
    found = load_file(tmp_path / "model/model.safetensors")
    from dare_core.testing.toy_models import ToyMasked

    start = ToyMasked(8, 12, seed=3).module.bias.detach()
    torch.testing.assert_close(found["bias"], start + 2.0 * low["a"] @ low["b"])


def test_merging_needs_no_data(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "moved", ignore=shutil.ignore_patterns("*.jsonl"))
    merged = run_dare_here("export", "runs/lora", "--merge", "-o", "model", folder=tmp_path / "moved")
    assert merged.code == 0, merged.stderr


def test_merging_a_fully_trained_run_is_refused(trained, tmp_path):
    result = run_dare_here("export", "runs/full", "--merge", "-o", str(tmp_path / "out"), folder=trained)
    assert result.code == 2
    assert "there is no adapter to merge" in result.stderr


def lines_of(result):
    assert result.code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_generation_from_the_spec_gives_the_first_rollout_of_the_run(trained):
    rollout = [json.loads(line) for line in (trained / "runs/full/samples/step_1.jsonl").read_text().splitlines()]
    result = run_dare_here("generate", "--spec", "spec.yaml", "--plain", "--samples", "4", *PROMPTS, folder=trained)
    found = {
        (f"row-{int(line['id'].removeprefix('argument-')) - 1}", line["sample"]): line for line in lines_of(result)
    }
    for row in rollout:
        assert found[row["id"], row["sample"] % 4]["response"] == row["response"]


def test_generation_from_an_exported_folder_needs_no_spec(trained, tmp_path):
    run_dare_here("export", "runs/full", "-o", str(tmp_path / "model"), folder=trained)
    options = ("--set", "rollout.new_tokens=5", "--set", "rollout.temperature=0.7", "--plain")
    arguments = ("generate", "--model", str(tmp_path / "model"), *options, "--samples", "3", "ab", "cd")
    first = lines_of(run_dare_here(*arguments, "--seed", "5", folder=tmp_path))
    assert [(line["id"], line["sample"]) for line in first] == [(f"argument-{i}", s) for i in (1, 2) for s in range(3)]
    assert lines_of(run_dare_here(*arguments, "--seed", "5", folder=tmp_path)) == first
    assert lines_of(run_dare_here(*arguments, "--seed", "6", folder=tmp_path)) != first


def test_generation_reads_files_and_writes_json_lines(trained, tmp_path):
    run_dare_here("export", "runs/full", "-o", str(tmp_path / "model"), folder=trained)
    (tmp_path / "in.jsonl").write_text(
        '{"id": "x", "prompt": "ab"}\n{"messages": [{"role": "user", "content": "c"}]}\n'
    )
    arguments = ("--model", "model", "-i", "in.jsonl", "-o", "out.jsonl", "--set", "rollout.new_tokens=4")
    result = run_dare_here("generate", *arguments, folder=tmp_path)
    assert result.code == 0, result.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["x", "in.jsonl:2"]
    assert all(len(row["token_ids"]) <= 4 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a",), "give either --model, a model folder, or --spec"),
        (("--model", ".", "a"), "has no config.json"),
        (("--spec", "spec.yaml", "-i", "missing.txt"), "missing.txt: cannot be read"),
    ],
)
def test_wrong_arguments_of_generate_are_explained(trained, arguments, said):
    result = run_dare_here("generate", *arguments, folder=trained)
    assert result.code == 2
    assert said in result.stderr


def test_an_adapter_of_another_size_is_named_before_weights_are_read(tmp_path):
    small, large = (write_llada_checkpoint(tmp_path / name, d_model=size) for name, size in (("a", 32), ("b", 64)))
    trained = LladaAdapter.load(LladaSection(path=str(small)), device=torch.device("cpu"), dtype=torch.float32)
    trained.attach_peft(PeftSection(kind="lora", r=2, alpha=4))
    trained.save_adapter(tmp_path / "adapter")
    for weights in large.glob("*.safetensors"):
        weights.write_bytes(b"not weights")
    arguments = ("--model", str(large), "--adapter", str(tmp_path / "adapter"), "--plain", "ab")
    result = run_dare_here("generate", *arguments, folder=tmp_path)
    assert result.code == 2, result.stdout + result.stderr
    assert "lora_A.weight has shape (2, 32); expected (2, 64)" in result.stderr
