"""Whole runs on a tiny LLaDA folder in the published layout."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.executor.toy_runs import metrics_of, weights_of

from dare_core.testing.command import run_dare_here
from dare_llada.testing import write_llada_checkpoint

SIZES = {"d_model": 32, "n_layers": 2, "n_heads": 2, "mlp_hidden_size": 48, "max_sequence_length": 128}
QUESTIONS = ["1+1=", "2+1=", "3+2=", "4+4="]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_llada_checkpoint(tmp_path_factory.mktemp("llada"), shards=2, **SIZES)


def spec_of(folder: Path, **changes):
    folder.mkdir(exist_ok=True, parents=True)
    rows = [{"id": f"q{i}", "q": q, "a": str(eval(q[:-1]))} for i, q in enumerate(QUESTIONS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "dare": 1,
        "run": {"name": "tiny", "steps": 4, "save_every": 2, "keep_checkpoints": 9},
        "model": {"path": str(changes.pop("model"))},
        "data": {"path": "rows.jsonl", "prompt": [{"role": "user", "content": "{q}"}], "reference": "{a}"},
        "rollout": {"new_tokens": 8, "block_length": 4, "steps_total": 4, "temperature": 1.0},
        "reward": {"kind": "python", "function": "tests.executor.toy_runs:digits", "full_score": 1e9},
        "algorithm": {"kind": "coupled-grpo", "group_size": 3},
        "optim": {"batch_size": 6, "lr": 1e-3},
        "peft": None,
        **changes,
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))


def run(*arguments, folder, code=0):
    result = run_dare_here(*arguments, folder=folder)
    assert result.code == code, result.stderr
    return result


def hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def keys(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= set(file.keys())
    return found


@pytest.mark.parametrize("peft", [None, {"kind": "lora", "r": 2, "alpha": 4}])
def test_resume_is_exact_and_the_published_folder_stays_untouched(tmp_path, base, peft):
    before = hashes(base)
    for name in ("whole", "parts"):
        spec_of(tmp_path / name, model=base, peft=peft)
    run("run", "spec.yaml", folder=tmp_path / "whole")
    run("run", "spec.yaml", "--to-step", "2", folder=tmp_path / "parts")
    run("resume", "runs/tiny", folder=tmp_path / "parts")
    whole, parts = tmp_path / "whole/runs/tiny", tmp_path / "parts/runs/tiny"
    recorded = json.loads((whole / "manifest.json").read_text())["model"]
    assert recorded["attention"].startswith("sdpa ")
    assert recorded["trainable_parameters"] == recorded["parameters"] or peft is not None
    assert (whole / "metrics.jsonl").read_bytes() == (parts / "metrics.jsonl").read_bytes()
    first, second = weights_of(whole, 4), weights_of(parts, 4)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert metrics_of(whole)[0]["rollout/logp_gap_max"] < 1e-4
    assert hashes(base) == before
    checkpoint = whole / "checkpoints/step_4"
    if peft is None:
        assert keys(checkpoint / "model") == keys(base)
        assert any(not torch.equal(a, b) for a, b in paired_tensors(checkpoint / "model", base))
    else:
        assert {p.name for p in (checkpoint / "adapter").iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
        }


def paired_tensors(one: Path, other: Path):
    tensors = [{k: v for p in folder.glob("*.safetensors") for k, v in load_file(p).items()} for folder in (one, other)]
    return [(tensors[0][key], tensors[1][key]) for key in tensors[0]]


def test_generation_with_an_adapter_equals_generation_with_merged_weights(tmp_path, base):
    spec_of(tmp_path, model=base, peft={"kind": "lora", "r": 2, "alpha": 4})
    run("run", "spec.yaml", folder=tmp_path)
    run("export", "runs/tiny", "-o", "adapter", folder=tmp_path)
    run("export", "runs/tiny", "--merge", "-o", "merged", folder=tmp_path)
    asked = ("--set", "rollout.new_tokens=8", "--set", "rollout.block_length=4", *QUESTIONS)
    attached = run("generate", "--model", str(base), "--adapter", "adapter", *asked, folder=tmp_path)
    merged = run("generate", "--model", "merged", *asked, folder=tmp_path)
    assert attached.stdout == merged.stdout
    plain = run("generate", "--model", str(base), *asked, folder=tmp_path)
    assert len(plain.stdout.splitlines()) == len(QUESTIONS)


def test_attention_that_the_machine_lacks_ends_the_run_at_its_key(tmp_path, base):
    spec_of(tmp_path, model=base, peft=None)
    result = run("run", "spec.yaml", "--set", "model.attention=flash", folder=tmp_path, code=2)
    assert "model.attention: attention 'flash' is not available" in result.stderr
    assert "take 'sdpa' or 'auto'" in result.stderr


def test_a_nan_attention_weight_ends_the_run_by_name_before_any_step(tmp_path):
    folder = write_llada_checkpoint(tmp_path / "broken", **SIZES)
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    tensors["model.transformer.blocks.1.q_proj.weight"][0, 0] = float("nan")
    save_file(tensors, path)
    spec_of(tmp_path, model=folder)
    result = run("run", "spec.yaml", folder=tmp_path, code=2)
    assert "weight 'model.layers.1.self_attn.q_proj.weight' of the loaded model is not finite" in result.stderr
    assert not (tmp_path / "runs/tiny").exists()


def test_activation_checkpointing_and_microbatches_change_no_result(tmp_path, base):
    found = []
    for name, engine in {
        "plain": {"kind": "local"},
        "recomputed": {"kind": "local", "activation_checkpointing": True},
        "small": {"kind": "local", "tokens_per_microbatch": 64},
        "two-pass": {"kind": "local", "update": "two-pass", "tokens_per_microbatch": 100},
    }.items():
        spec_of(tmp_path / name, model=base, engine=engine)
        run("run", "spec.yaml", "--to-step", "1", folder=tmp_path / name)
        found.append((metrics_of(tmp_path / name / "runs/tiny")[0], weights_of(tmp_path / name / "runs/tiny", 1)))
    for metrics, weights in found[1:]:
        assert metrics["loss"] == pytest.approx(found[0][0]["loss"], rel=1e-4)
        assert metrics["optim/grad_norm"] == pytest.approx(found[0][0]["optim/grad_norm"], rel=1e-4)
        for name, tensor in weights.items():
            torch.testing.assert_close(tensor, found[0][1][name], rtol=1e-3, atol=3e-5)


@pytest.mark.parametrize("peft", [None, {"kind": "lora", "r": 2, "alpha": 4}])
def test_training_in_bfloat16_resumes_exactly_from_float32_masters(tmp_path, base, peft):
    for name in ("whole", "parts"):
        spec_of(
            tmp_path / name,
            model=base,
            peft=peft,
            engine={"kind": "local", "autocast": "bfloat16", "activation_checkpointing": True},
        )
    sets = ("--set", "model.dtype=bfloat16")
    run("run", "spec.yaml", *sets, folder=tmp_path / "whole")
    run("run", "spec.yaml", *sets, "--to-step", "2", folder=tmp_path / "parts")
    run("resume", "runs/tiny", folder=tmp_path / "parts")
    whole, parts = tmp_path / "whole/runs/tiny", tmp_path / "parts/runs/tiny"
    assert (whole / "metrics.jsonl").read_bytes() == (parts / "metrics.jsonl").read_bytes()
    first, second = weights_of(whole, 4), weights_of(parts, 4)
    assert all(tensor.dtype == torch.float32 and torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert metrics_of(whole)[-1]["rollout/logp_gap_max"] < 1.0
