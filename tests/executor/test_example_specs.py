"""The specs a GPU user starts from run as they are; only model folder and sizes are overlaid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dare_core.spec.checks import TRAINING_METRICS
from dare_core.testing.command import run_dare_here
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import write_llada_checkpoint

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RL_SIZES = (
    "rollout.new_tokens=8",
    "rollout.block_length=4",
    "rollout.steps_total=4",
    "optim.batch_size=4",
    "algorithm.group_size=2",
    "algorithm.inner_updates=2",
)
SFT_SIZES = ("optim.batch_size=2", "data.limit=20", "optim.warmup_steps=1")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_llada_checkpoint(tmp_path_factory.mktemp("llada"), shards=2, max_sequence_length=1024)


def overlaid(model: Path, folder: Path, *more: str) -> list[str]:
    changes = (f"model.path={model}", f"run.folder={folder}", "run.steps=3", "data.limit=40", *more)
    return [argument for change in changes for argument in ("--set", change)]


def dare(*arguments: str, code: int = 0):
    result = run_dare_here(*arguments, folder=ROOT)
    assert result.code == code, result.stderr
    return result


@pytest.mark.parametrize(
    ("name", "sizes", "export"),
    [
        ("llada-gsm8k-d1", ("peft.r=2", "peft.alpha=4", *RL_SIZES), ("--merge",)),
        ("llada-gsm8k-coupled-grpo", RL_SIZES, ()),
        ("llada-gsm8k-sft-lora", ("peft.r=2", "peft.alpha=4", *SFT_SIZES), ("--merge",)),
    ],
)
def test_example_trains_on_gsm8k_and_its_export_loads(tmp_path, model, name, sizes, export):
    dare("run", str(EXAMPLES / f"{name}.yaml"), *overlaid(model, tmp_path, *sizes))
    run = tmp_path / name
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(step["loss"] is not None for step in steps)
    exported = tmp_path / "exported"
    dare("export", str(run), *export, "-o", str(exported))
    section = LladaSection(path=str(exported))
    trained = LladaAdapter.load(section, device=torch.device("cpu"), dtype=torch.float32)
    base = LladaAdapter.load(LladaSection(path=str(model)), device=torch.device("cpu"), dtype=torch.float32)
    before, after = dict(base.published()), dict(trained.published())
    assert before.keys() == after.keys()
    answer = dare("generate", "--model", str(exported), "--set", "rollout.new_tokens=4", "2 + 2 =")
    assert len(answer.stdout.splitlines()) == 1
    if name == "llada-gsm8k-sft-lora":
        assert any(not torch.equal(before[key], after[key]) for key in before)


def test_gsm8k_rollouts_are_judged_by_the_published_reward(tmp_path, model):
    dare("run", str(EXAMPLES / "llada-gsm8k-d1.yaml"), *overlaid(model, tmp_path, "peft.r=2", *RL_SIZES))
    lines = [
        json.loads(line)
        for path in sorted((tmp_path / "llada-gsm8k-d1" / "samples").iterdir())
        for line in path.read_text().splitlines()
    ]
    assert len(lines) == 12
    assert all(line["id"].startswith("gsm8k-train-") and "correctness" in line["parts"] for line in lines)


def test_every_metric_that_a_run_writes_may_be_watched(tmp_path, model):
    dare("run", str(EXAMPLES / "llada-gsm8k-d1.yaml"), *overlaid(model, tmp_path, "peft.r=2", *RL_SIZES))
    first = json.loads((tmp_path / "llada-gsm8k-d1" / "metrics.jsonl").read_text().splitlines()[0])
    assert {name.split("/")[0] for name in first} - {"step"} <= set(TRAINING_METRICS)


def test_the_spec_of_the_readme_runs(tmp_path, model):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    spec = tmp_path / "spec.yaml"
    spec.write_text(text.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    dare("run", str(spec), *overlaid(model, tmp_path, "peft.r=2", *RL_SIZES))
    assert (tmp_path / "first" / "checkpoints" / "step_3" / "complete.json").is_file()
