"""Reference estimates kept on disk: the same training, fewer forwards, and never another run's numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.draw_enumeration import context_of
from tests.executor.elbo_estimators import counts, taken
from tests.executor.toy_runs import TOYS, metrics_of, offline_spec, weights_of, write_spec
from tests.executor.toy_training import toy_rows
from torch import nn

from dare_core.errors import UserError
from dare_core.loops.references import ReferenceEstimates, view_digests, weights_checksum
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed
from dare_core.testing.toy_models import ToyMasked

CACHE = "kept/references.safetensors"


@pytest.fixture(scope="module", autouse=True)
def toys(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("site"), TOYS):
        yield


def vrpo(**changes: Any) -> dict[str, Any]:
    spec = offline_spec(run__steps=6, run__save_every=2, run__keep_checkpoints=9)
    spec["data"] = {"kind": "jsonl", "path": "pairs.jsonl", "prompt": "{q}", "chosen": "{good}", "rejected": "{bad}"}
    spec["algorithm"] = {"kind": "vrpo", "views": "fixed", "beta": 1.0}
    spec["likelihood"] = {"kind": "count-stratified", "draws": 2}
    for path, value in changes.items():
        section, _, key = path.partition("__")
        spec[section] = {**(spec.get(section) or {}), key: value} if key else value
    return spec


def run(folder: Path, spec: dict[str, Any], *more: str):
    write_spec(folder, spec)
    pairs = [
        {"q": text, "good": "ab"[: 1 + i % 2], "bad": "cde"[i % 2 :]} for i, text in enumerate(["ab", "cd", "e", "f"])
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")
    return run_dare_here("run", "spec.yaml", *more, folder=folder)


def without_spent(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.startswith("spent/")} for line in metrics_of(folder)]


@pytest.mark.parametrize(
    "changes",
    [{}, {"peft": {"kind": "lora", "r": 2, "alpha": 4}}, {"model__kind": "toy-block"}],
    ids=["full", "lora", "block"],
)
def test_training_with_kept_estimates_is_the_same_and_a_later_run_spends_less(tmp_path, changes):
    if "model__kind" in changes:
        changes = {**changes, "model__config": {"vocab_size": 8, "max_positions": 12, "block_length": 3}}
    assert run(tmp_path, vrpo(run__name="plain", **changes)).code == 0
    for name in ("first", "second"):
        result = run(tmp_path, vrpo(run__name=name, algorithm__reference_cache=CACHE, **changes))
        assert result.code == 0, result.stderr
    plain, first, second = (tmp_path / "runs" / name for name in ("plain", "first", "second"))
    assert without_spent(plain) == without_spent(first) == without_spent(second)
    assert metrics_of(first)[0]["loss"] == pytest.approx(0.6931471805599453)
    assert len({line["loss"] for line in metrics_of(first)}) == 6
    forwards = [metrics_of(folder)[-1]["spent/forwards"] for folder in (plain, first, second)]
    # 6 steps of 4 rows and 2 draws, for the live policy; the reference sees the 8 rows once, or never.
    assert forwards[1] - forwards[2] == 16
    assert forwards[0] - forwards[2] == 48


def test_fixed_views_repeat_in_every_epoch_and_fresh_ones_do_not(tmp_path):
    nelbos = {}
    for views in ("fixed", "fresh"):
        spec = vrpo(run__name=views, algorithm__views=views, optim__lr=1e-300, optim__batch_size=8)
        assert run(tmp_path, spec).code == 0
        nelbos[views] = {line["algorithm/chosen_nelbo_per_token"] for line in metrics_of(tmp_path / "runs" / views)}
    assert len(nelbos["fixed"]) == 1
    assert len(nelbos["fresh"]) == 6


def test_a_resumed_run_with_kept_estimates_equals_a_whole_one(tmp_path):
    spec = vrpo(algorithm__reference_cache=CACHE)
    assert run(tmp_path / "whole", spec).code == 0
    assert run(tmp_path / "parts", spec, "--to-step", "2").code == 0
    (tmp_path / "parts" / CACHE).unlink()
    result = run_dare_here("resume", "runs/toy", folder=tmp_path / "parts")
    assert result.code == 0, result.stderr
    whole, parts = tmp_path / "whole/runs/toy", tmp_path / "parts/runs/toy"
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    first, second = weights_of(whole, 6), weights_of(parts, 6)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert (tmp_path / "parts" / CACHE).read_bytes() == (tmp_path / "whole" / CACHE).read_bytes()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"run__seed": 4}, "seed '3', here '4'; weights '"),
        ({"likelihood__draws": 4}, "likelihood.draws '2', here '4'"),
        ({"data__rejected": "{bad}a"}, "data '"),
        (
            {"model__kind": "toy-block", "model__config": {"vocab_size": 8, "max_positions": 12, "block_length": 3}},
            "layout",
        ),
    ],
)
def test_estimates_of_another_run_are_refused_by_what_differs(tmp_path, changes, named):
    assert run(tmp_path, vrpo(algorithm__reference_cache=CACHE)).code == 0
    before = (tmp_path / CACHE).read_bytes()
    result = run(tmp_path, vrpo(run__name="other", algorithm__reference_cache=CACHE, **changes))
    assert result.code == 2
    assert "belong to another run" in result.stderr
    assert named in result.stderr
    assert (tmp_path / CACHE).read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "flip", "other"])
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = kept(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-3] ^= 1
    path.write_bytes({"cut": data[:-9], "flip": data, "other": b"no tensors"}[damage])
    with pytest.raises(UserError, match=r"the file (cannot be read|does not match its checksum).*delete this one"):
        ReferenceEstimates(path, {"seed": "3"})


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"the file cannot be written .*; name another file"):
        ReferenceEstimates(tmp_path / "file" / "estimates", {"seed": "3"}).write()


def test_a_reference_that_moves_keeps_no_estimates_and_a_dry_run_says_so(tmp_path):
    result = run(tmp_path, vrpo(algorithm__reference_cache=CACHE, engine__reference_every=2), "--dry-run")
    assert result.code == 2
    assert "engine.reference_every: a reference policy that moves has no estimates to keep" in result.stderr


def test_a_folder_is_no_file_of_estimates(tmp_path):
    with pytest.raises(UserError, match="is a folder, not a file; name a file in it"):
        ReferenceEstimates(tmp_path, {"seed": "3"})


def kept(folder: Path) -> Path:
    adapter, rows, estimator = ToyMasked(8, 16, seed=1), toy_rows(), counts(draws=2)
    views = estimator.plan(rows, context_of(adapter))
    path = folder / "kept.safetensors"
    made = ReferenceEstimates(path, {"seed": "3"})
    made.keep(rows, views, estimator.reduce(views, adapter.token_logp(views), rows).detached())
    made.write()
    return path


def test_estimates_come_back_bit_for_bit_in_any_batch_and_padding(tmp_path):
    path, adapter, estimator = kept(tmp_path), ToyMasked(8, 16, seed=1), counts(draws=2)
    read = ReferenceEstimates(path, {"seed": "3"})
    for index, extra in ((torch.tensor([4, 1]), 3), (torch.arange(6), 0)):
        rows = taken(toy_rows(), index, extra)
        views = estimator.plan(rows, context_of(adapter))
        found = estimator.reduce(views, adapter.token_logp(views), rows).value
        torch.testing.assert_close(read.estimate(rows, views).value, found, rtol=1e-13, atol=0)
    assert not read.misses(toy_rows())


def test_other_views_than_the_kept_ones_are_refused_by_row(tmp_path):
    path, adapter, estimator = kept(tmp_path), ToyMasked(8, 16, seed=1), counts(draws=2)
    rows = toy_rows()
    views = estimator.plan(rows, replace(context_of(adapter), address=context_of(adapter, "other").address))
    with pytest.raises(UserError, match="row 'row-0' is met with other views"):
        ReferenceEstimates(path, {"seed": "3"}).estimate(rows, views)
    assert len(set(view_digests(rows, views))) == len(rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm__views": "fresh", "algorithm__reference_cache": "x"}, "'reference_cache' needs 'views: fixed'"),
        ({"algorithm__reference_free": True, "algorithm__reference_cache": "x"}, "contradict each other"),
        ({"likelihood__systematic": "rows"}, "depend on its batch, so 'algorithm.views: fixed' cannot hold"),
        ({"likelihood": {"kind": "bernoulli", "crop": "batch"}}, "likelihood.crop"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_read(tmp_path, changes, message):
    result = run(tmp_path, vrpo(**changes))
    assert result.code == 2
    assert message in result.stderr
    assert not (tmp_path / "runs").exists()


def test_a_checksum_of_weights_sees_values_places_names_and_dtypes():
    module = nn.Linear(8, 4)
    same = nn.Linear(8, 4)
    same.load_state_dict(module.state_dict())
    checksum = weights_checksum(module)
    assert weights_checksum(same) == checksum
    with torch.no_grad():
        same.weight[0, 0], same.weight[0, 1] = module.weight[0, 1].clone(), module.weight[0, 0].clone()
    assert weights_checksum(same) != checksum
    assert weights_checksum(nn.Linear(8, 4).to(torch.bfloat16)) != checksum
