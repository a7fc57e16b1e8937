"""Rows and options that cannot be trained on are refused before any weight is read, by the row's name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.executor.families import FAMILIES
from tests.executor.toy_runs import TOYS, offline_spec, write_spec

from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed


@pytest.fixture(scope="module", autouse=True)
def toys(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("site"), TOYS):
        yield


def refused(folder, rows: list[dict[str, Any]], **changes: Any) -> str:
    spec = offline_spec(run__steps=1, data__path="bad.jsonl", optim__batch_size=2, **changes)
    write_spec(folder, spec)
    (folder / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = run_dare_here("run", "spec.yaml", folder=folder)
    assert result.code == 2, result.stdout
    assert not (folder / "runs").exists()
    return result.stderr


GOOD = {"id": "good", "question": "ab", "answer": "c"}
PAIRS = {
    "data": {"kind": "jsonl", "path": "bad.jsonl", "prompt": "{question}", "chosen": "{good}", "rejected": "{bad}"},
    "algorithm": {"kind": "dpo"},
}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "odd", "question": "ab"}, "row 'odd': there is no field 'answer'"),
        ({"id": "odd", "question": "ab", "answer": None}, "row 'odd': field 'answer' is null"),
        ({"id": "odd", "question": "ab", "answer": " "}, "row 'odd': the completion is empty"),
        ({"id": "odd", "question": "", "answer": "c"}, "row 'odd': the prompt is empty"),
        (
            {"id": "odd", "question": "abcdef" * 2, "answer": "c"},
            "row 'odd': prompt and answer make 14 tokens; the model takes 12",
        ),
        ({"id": "odd", "question": "ab", "answer": "ü"}, "row 'odd': 'completion' holds 'ü'; the toy vocabulary"),
    ],
    ids=["no-answer", "null", "blank", "no-prompt", "long-prompt", "outside"],
)
def test_a_demonstration_that_cannot_be_learned_is_named(tmp_path, row, message):
    assert f"bad.jsonl:2: {message}" in refused(tmp_path, [GOOD, row])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"id": "odd", "question": "ab", "good": "c", "bad": "c"},
            "row 'odd': pair 'odd': chosen and rejected",
        ),
        ({"id": "odd", "question": "ab", "good": "c", "bad": ""}, "row 'odd': the rejected is empty"),
        ({"id": "odd", "question": "ab", "good": "c"}, "row 'odd': there is no field 'bad'"),
        (
            {"id": "odd", "question": "ab", "good": "c", "bad": "abcdef" * 2},
            "row 'odd': prompt and answer make 15 tokens",
        ),
    ],
    ids=["equal", "blank", "missing", "long"],
)
def test_a_pair_that_cannot_be_learned_is_named(tmp_path, row, message):
    said = refused(tmp_path, [{"id": "good", "question": "ab", "good": "c", "bad": "d"}, row], **PAIRS)
    assert f"bad.jsonl:2: {message}" in said


@pytest.mark.parametrize(("question", "answer"), [("1+1", "z"), ("z", "2")], ids=["answer", "prompt"])
def test_a_token_outside_the_vocabulary_is_named_by_its_line_before_anything_is_written(tmp_path, question, answer):
    family = next(family for family in FAMILIES if family.kind == "llada")
    family.write(tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["z"] = 302
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    said = refused(
        tmp_path,
        [{"id": "good", "question": "1+1", "answer": "2"}, {"id": "odd", "question": question, "answer": answer}],
        model={"path": "model"},
        data__max_tokens=40,
    )
    assert "bad.jsonl:2: row 'odd': token 302 lies outside the model's vocabulary 0..261" in said


@pytest.mark.parametrize("kind", ["bernoulli", "count-stratified", "espo", "block-stratified", "spg"])
def test_draws_below_one_are_refused_by_their_place_in_the_spec(tmp_path, kind):
    said = refused(tmp_path, [GOOD, GOOD | {"id": "other"}], likelihood={"kind": kind, "draws": 0})
    assert "likelihood.draws" in said
