"""The JSON schema for editors agrees with the resolver on keys and kinds."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.control.spec_plugins import SPEC

from dare_core.catalog import Catalog
from dare_core.spec.nodes import read_text
from dare_core.spec.schema import spec_schema


@pytest.fixture(scope="module")
def validator(pretend: Catalog) -> Draft202012Validator:
    schema = spec_schema(pretend)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def data_of(text: str) -> Any:
    root, problems = read_text(text, "f", "spec")
    assert root is not None
    assert not problems
    return root.plain()


@pytest.mark.parametrize(
    "text",
    [
        SPEC,
        "algorithm: group-pg",
        "algorithm: {kind: 'dare-pretend:group-pg', preset: full, group_size: null}",
        "rollout: {top_p: 0.5, selection: {kind: x, options: {a: 1}}}",
        "rollout: {kind: quick, threshold: 0.5}",
        "reward: {kind: sum, parts: [match, {kind: match, weight: 2, extract: boxed}]}",
        "reward: {kind: sum, parts: [{kind: sum, weight: 2, parts: [match]}]}",
        "eval: quiz",
        "eval: {kind: quiz, data: {path: x.jsonl, prompt: a}, reward: match}",
        "eval: [quiz, {kind: quiz, name: b, data: null}]",
        "eval: null",
        "peft: null",
        "peft: {targets: [a, b]}",
        "x-anything: {free: [1]}",
        "model: {path: x, dtype: auto}",
        "data: {path: x.parquet, prompt: [{role: user, content: a}]}",
        "trackers: []",
        "engine: {update: two-pass}",
        "{}",
    ],
)
def test_schema_accepts_what_specs_may_hold(validator: Draft202012Validator, text: str):
    assert [error.message for error in validator.iter_errors(data_of(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        "dare: 2",
        "nothing: 1",
        "algorithm: nobody",
        "algorithm: {kind: nobody}",
        "algorithm: {kind: group-pg, clip_rang: 1}",
        "algorithm: {kind: group-pg, preset: none}",
        "algorithm: {kind: imitate, preset: full}",
        "algorithm: {kind: group-pg, mode: words}",
        "rollout: {thresholt: 1}",
        "rollout: {threshold: 1}",
        "rollout: {selection: {kid: x}}",
        "reward: {kind: sum, parts: [{kind: match, weigth: 2}]}",
        "reward: {kind: sum, parts: [{kind: match, weight: x}]}",
        "reward: {kind: sum, parts: [{weight: 2}]}",
        "reward: {kind: sum, parts: [nobody]}",
        "eval: [{kind: quiz, data: {path: x.jsonl, promt: a}}]",
        "eval: [{kind: quiz, reward: {kind: match, foo: 1}}]",
        "eval: [nobody]",
        "trackers: nobody",
        "optim: {lrr: 1}",
        "optim: {lr: fast}",
        "run: {steps: 0}",
        "model: {foo: x}",
        "likelihood: 3",
        "[]",
    ],
)
def test_schema_refuses_what_specs_may_not_hold(validator: Draft202012Validator, text: str):
    assert list(validator.iter_errors(data_of(text)))


def test_options_carry_their_descriptions(validator: Draft202012Validator):
    definitions = validator.schema["$defs"]
    assert definitions["optim"]["properties"]["lr"]["description"] == "Peak learning rate."
    assert definitions["algorithm.dare-pretend.group-pg"]["properties"]["clip_range"]["description"] == "Clip."
