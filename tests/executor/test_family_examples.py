"""Every example of a family validates and trains, with a tiny checkpoint and short rows in place of what it names."""

from __future__ import annotations

import json

import pytest
import yaml
from tests.architecture.project import ROOT
from tests.executor.families import FAMILIES

from dare_core.testing.command import run_dare_here

FAMILY = {family.kind: family for family in FAMILIES}
LONGEST = {"llada": "max_sequence_length"}


def examples():
    """(path, family): files are named <kind>-<what>.yaml; the longest kind counts."""
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        kinds = [kind for kind in FAMILY if path.name.startswith(f"{kind}-")]
        yield pytest.param(path, FAMILY[max(kinds, key=len)] if kinds else None, id=path.stem)


@pytest.mark.parametrize(("path", "family"), list(examples()))
def test_an_example_validates_and_trains_on_a_tiny_checkpoint(path, family, tmp_path):
    assert family is not None, "no family has the first word of the file's name"
    model = family.write(tmp_path / "model", **{LONGEST.get(family.kind, "max_position_embeddings"): 2048})
    rows = [{"id": f"r{i}", "prompt": f"{i}+{i}=?", "answer": str(2 * i)} for i in range(3)]
    rows = [row | {"chosen": row["answer"], "rejected": "none"} for row in rows]
    turns = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    rows = [row | {"messages": turns * 2} for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = {"run.steps": 1, "model.path": str(model), "data.path": "rows.jsonl", "optim.batch_size": 2}
    if "reward" in yaml.safe_load(path.read_text()):
        small |= {"rollout.new_tokens": 8, "rollout.block_length": 4, "rollout.steps_per_block": 2}
        small |= {"algorithm.group_size": 2, "data.max_prompt_tokens": 600}
    arguments = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    checked = run_dare_here("validate", str(path), *arguments, folder=tmp_path)
    assert checked.code == 0, checked.stderr
    result = run_dare_here("run", str(path), *arguments, folder=tmp_path)
    assert result.code == 0, result.stderr
    (metrics,) = (tmp_path / "runs").glob("*/metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "padding", "normalizer"), [("llada", True, "sequence"), ("sdar", False, "supervised-tokens")]
)
def test_padding_and_divisor_of_sft_are_those_of_the_family(kind, padding, normalizer, tmp_path):
    FAMILY[kind].write(tmp_path / "model")
    spec = {"dare": 1, "run": {"name": "x", "steps": 1}, "model": {"path": "model"}, "algorithm": "sft"}
    spec["data"] = {"path": "rows.jsonl", "prompt": "{q}", "completion": "{a}"}
    (tmp_path / "rows.jsonl").write_text('{"q": "a", "a": "b"}\n')
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    shown = run_dare_here("show", "spec.yaml", folder=tmp_path)
    assert shown.code == 0, shown.stderr
    algorithm = yaml.safe_load(shown.stdout)["algorithm"]
    assert (algorithm["supervise_padding"], algorithm["loss_normalizer"]) == (padding, normalizer)
