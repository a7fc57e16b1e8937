"""Every algorithm trains every family that the support matrix says it can, by one pass and by two alike."""

from __future__ import annotations

import json
import math

import pytest
import yaml
from tests.executor.families import FAMILIES

from dare_core.catalog import Catalog
from dare_core.cli.matrix import support_matrix
from dare_core.components import Slot
from dare_core.testing.command import run_dare_here

CATALOG = Catalog.load()
FAMILY = {family.kind: family for family in FAMILIES}
PAIRS = [
    (cell.algorithm, cell.other) for cell in support_matrix(CATALOG, Slot.MODEL) if cell.works and cell.other in FAMILY
]
STEPS = 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Kind -> a tiny checkpoint, written once."""
    return {kind: family.write(tmp_path_factory.mktemp(kind) / "model") for kind, family in FAMILY.items()}


def spec_of(algorithm, model):
    """The algorithm's own settings, as far as three steps on a tiny model allow."""
    registered = CATALOG.find(Slot.ALGORITHM, algorithm)
    needs = registered.component.needs
    data = {"path": "rows.jsonl", "prompt": [{"role": "user", "content": "{q}"}]}
    spec = {
        "dare": 1,
        "run": {"name": "tiny", "steps": STEPS},
        "model": {"path": str(model), "dtype": "float32"},
        "data": data,
        "algorithm": {"kind": algorithm},
        "optim": {"batch_size": 2, "lr": 1e-3, "warmup_steps": 0},
        "peft": None,
    }
    if "demonstrations" in needs:
        data["completion"] = "{a}"
    elif "pairs" in needs:
        data |= {"chosen": "{a}", "rejected": "{b}"}
    else:
        data["reference"] = "{a}"
        spec["rollout"] = {"new_tokens": 8, "block_length": 4, "steps_per_block": 2, "temperature": 1.0}
        spec["reward"] = {"kind": "python", "function": "tests.executor.toy_runs:digits", "full_score": 1e9}
    fields = CATALOG.config_class(registered).model_fields
    if "group_size" in fields:
        spec["algorithm"]["group_size"] = spec["optim"]["batch_size"] = 4
    # Four responses may be the leaves of a tree; rewards are graded, and few responses end.
    fitting = {"root_branches": 2, "branches": 2, "mean_reward_range": None, "fail_overlong": False}
    spec["algorithm"] |= {name: value for name, value in fitting.items() if name in fields}
    return spec


def trained(folder, spec, mode, steps):
    """Metrics of the first steps."""
    folder.mkdir()
    rows = [{"id": f"r{i}", "q": f"{i}+{i}=", "a": f"{2 * i} ", "b": "no"} for i in range(4)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec | {"engine": {"kind": "local", "update": mode}}))
    result = run_dare_here("run", "spec.yaml", "--to-step", str(steps), folder=folder)
    assert result.code == 0, result.stderr
    lines = (folder / "runs/tiny/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("algorithm", "kind"), PAIRS)
def test_a_pair_that_fits_trains_for_three_steps_by_either_update(algorithm, kind, folders, tmp_path):
    spec = spec_of(algorithm, folders[kind])
    two = trained(tmp_path / "two", spec, "two-pass", STEPS)
    one = trained(tmp_path / "one", spec, "direct", 1)
    assert len(two) == STEPS
    assert all(math.isfinite(step["loss"]) and math.isfinite(step["optim/grad_norm"]) for step in two)
    assert any(step["optim/grad_norm"] > 0 for step in two)
    for name in ("loss", "optim/grad_norm"):
        assert one[0][name] == pytest.approx(two[0][name], rel=1e-3, abs=1e-6)
