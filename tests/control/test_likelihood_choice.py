"""Which likelihood estimators go with which algorithms, and what is said where they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.control.test_spec_documents import _MODEL, _ROWS, ROOT

from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.errors import UserError
from dare_core.spec.plan import RunPlan
from dare_core.spec.resolve import resolve_spec

CATALOG = Catalog.load()


def resolved(folder: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, likelihood: str) -> RunPlan:
    monkeypatch.chdir(ROOT)
    offline = {"sft": 'completion: "{answer}"', "dpo": 'chosen: "{answer}", rejected: "no"'}
    data = offline.get(algorithm, 'reference: "{answer}"')
    reward = "" if algorithm in offline else "reward: match\n"
    (folder / "spec.yaml").write_text(
        f"dare: 1\nrun: {{name: t, steps: 1}}\ndata: {{path: {_ROWS}, prompt: '{{prompt}}', {data}}}\n"
        f"{reward}algorithm: {algorithm}\nlikelihood: {likelihood}\n{_MODEL}"
    )
    return resolve_spec([folder / "spec.yaml"], [], CATALOG)


@pytest.mark.parametrize(
    ("algorithm", "likelihood"),
    [
        ("sft", "count-stratified"),
        ("dpo", "espo"),
        ("espo", "block-stratified"),
        ("ebpo", "count-stratified"),
        ("bgpo", "{kind: bernoulli, per: view, draws: 4}"),
    ],
)
def test_any_estimate_of_the_wanted_shape_will_do(tmp_path, monkeypatch, algorithm, likelihood):
    plan = resolved(tmp_path, monkeypatch, algorithm, likelihood)
    assert plan[Slot.ALGORITHM].name == algorithm


@pytest.mark.parametrize(
    ("algorithm", "likelihood", "message"),
    [
        ("bgpo", "bernoulli", "likelihood.per: algorithm 'bgpo' takes one estimate per view, and this is one per row"),
        ("espo", "{kind: espo, per: view}", "takes one estimate per row, and this is one per view; set it to 'row'"),
        ("spg", "count-stratified", "needs 'upper-bound'"),
        ("dpo", "spg", "installed that do: bernoulli, block-stratified, count-stratified, espo"),
        ("sft", "{kind: bernoulli, draws: 0}", "likelihood.draws: must be greater than 0"),
        ("sft", "{kind: bernoulli, time_low: 0.9, time_high: 0.5}", "time_low 0.9 exceeds time_high 0.5"),
    ],
)
def test_estimates_of_another_shape_are_refused_by_name(tmp_path, monkeypatch, algorithm, likelihood, message):
    with pytest.raises(UserError) as caught:
        resolved(tmp_path, monkeypatch, algorithm, likelihood)
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1
