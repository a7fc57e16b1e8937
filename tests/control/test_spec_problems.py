"""Wrong specs: every problem in one go, with file and line, nearest name, and what is allowed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.control.spec_plugins import SPEC, Specs

from dare_core.catalog import Catalog
from dare_core.errors import UserError
from dare_core.spec.resolve import SECTIONS, plan_from_resolved, resolve_spec


def test_unknown_key_names_the_nearest_one(specs: Specs):
    lines = specs.lines(SPEC.replace("group-pg", "\n  kind: group-pg\n  clip_rang: 0.2"))
    assert lines == ["spec.yaml:8: algorithm.clip_rang: unknown key for 'group-pg'; did you mean 'clip_range'?"]


def test_misplaced_key_names_the_section_that_has_it(specs: Specs):
    assert specs.lines(SPEC + "rollout: {lr: 1}\n") == [
        "spec.yaml:7: rollout.lr: unknown key for 'native'; it belongs to optim"
    ]


def test_unknown_section_names_the_nearest_one(specs: Specs):
    assert specs.lines(SPEC + "optimm: {lr: 1}\n") == ["spec.yaml:7: optimm: unknown section; did you mean 'optim'?"]


def test_unknown_kind_and_unknown_key_beside_it_are_both_reported(specs: Specs):
    kind, key = specs.lines(SPEC.replace("group-pg", "{kind: grop-pg, clip_rang: 0.2}"))
    assert kind.startswith("spec.yaml:6: algorithm.kind: unknown algorithm 'grop-pg'; did you mean 'group-pg'")
    assert key == "spec.yaml:6: algorithm.clip_rang: unknown key for 'group-pg'; did you mean 'clip_range'?"


def test_keys_of_a_kind_without_a_near_name_are_checked_against_all_kinds(specs: Specs):
    kind, key = specs.lines(SPEC.replace("group-pg", "{kind: zzz, clip_rang: 0.2, beta: 0.1}"))
    assert "unknown algorithm 'zzz'" in kind
    assert "algorithm.clip_rang: unknown key for any algorithm; did you mean 'clip_range'?" in key


def test_kind_of_an_official_package_names_it(specs: Specs):
    (line,) = specs.lines(SPEC.replace("model: {", "model: {kind: sdar, "))
    assert "pip install dare-sdar" in line


def test_all_problems_come_in_one_go_and_in_file_order(specs: Specs):
    spec = """\
dare: 2
run: {name: t, stepz: 5}
model: {kind: toyy, path: nowhere}
data:
  path: none.jsonl
  prompt: "{q}"
  limit: "3"
  limit: 4
reward: {kind: sum, parts: [{kind: matc}, {kind: match, weight: heavy}]}
algorithm: {kind: group-pg, mode: words}
rollout: {new_tokens: 0}
nothing: 1
"""
    problems = specs.problems(spec, "optim: {lr: fast}\n")
    places = [problem.where for problem in problems]
    lines = [int(place.rpartition(":")[2]) for place in places if place and place.startswith("spec")]
    assert lines == sorted(lines)
    assert places[-1] == "over0.yaml:1"
    assert {problem.path for problem in problems} >= {
        "dare",
        "run.stepz",
        "run.steps",
        "model.kind",
        "data.limit",
        "reward.parts.0.kind",
        "reward.parts.1.weight",
        "algorithm.mode",
        "rollout.new_tokens",
        "nothing",
        "optim.lr",
    }
    assert any("duplicate key 'limit', first on line 7" in str(problem) for problem in problems)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("run: {name: t, steps: many}", "run.steps: must be a whole number, not 'many' (text)"),
        ("run: {name: t, steps: 1.5}", "run.steps: must be a whole number, not 1.5"),
        ("run: {name: t, steps: 0}", "run.steps: must be greater than 0, not 0"),
        ("run: {name: t, steps: true}", "run.steps: must be a whole number, not true"),
        ("run: {name: t, steps: 1, save_samples: yes}", "must be true or false, not 'yes' (text)"),
        ("run: {name: [a], steps: 1}", "run.name: must be text, not a list of 1"),
        ("run: {name: 5, steps: 1}", "run.name: must be text, not 5"),
        ("run: {steps: 1}", "run.name: missing key for 'run'; Folder name of the run below `folder`."),
        ("run: 3", "run: must be a mapping of options, not 3"),
        ("run:", "run: missing section; it needs name, steps"),
    ],
)
def test_wrong_value_says_what_was_given_and_what_is_allowed(specs: Specs, section: str, says: str):
    (line,) = specs.lines(SPEC.replace("run: {name: t, steps: 5}", section))
    assert line.startswith("spec.yaml:2: run")
    assert says in line


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("optim: {lr: .inf}", "optim.lr: must be a finite number, not inf"),
        ("optim: {lr: 1e999}", "optim.lr: must be a finite number"),
        ("optim: {schedule: square}", "must be 'constant', 'linear' or 'cosine', not 'square' (text)"),
        ("optim: {betas: [0.1]}", "optim.betas.1: missing"),
        ("rollout: {eos_rule: halt}", "must be 'fill', 'stop', 'stop-early', 'suppress' or 'suppress-confidence'"),
        ("peft: {targets: 5}", "peft.targets: must be text or a list, not 5"),
        ("peft: {targets: [q, 5]}", "peft.targets.1: must be text, not 5"),
        ("rollout: {selection: {kid: x}}", "rollout.selection.kid: unknown key for 'native'; did you mean 'kind'?"),
        ("rollout: {kind: 3}", "rollout.kind: must name a rollout backend, not 3"),
        ("rollout: [a]", "rollout: must be a kind or a mapping with 'kind' and options, not a list of 1"),
        ("eval: [{limit: 3}]", "eval.0.kind: missing key; installed: held-out, "),
        ("eval: [3]", "eval.0: must be a mapping with 'kind' and options, not 3"),
        ("eval: {kind: quiz, data: {path: rows.jsonl, promt: x}}", "eval.data.promt: unknown key for 'jsonl'"),
        ("trackers: nobody", "trackers.kind: unknown tracker 'nobody'"),
        ("likelihood: {preset: mani}", "likelihood.preset: unknown preset 'mani' of 'one-step-x'; did you mean 'many'"),
        ("likelihood: {preset: 3}", "likelihood.preset: must be the name of a preset, not 3"),
    ],
)
def test_wrong_section_is_named_with_its_line(specs: Specs, section: str, says: str):
    lines = specs.lines(SPEC + section + "\n")
    assert any(says in line for line in lines), lines
    assert all(line.startswith("spec.yaml:7: ") for line in lines)


def test_wrong_template_is_named_with_its_line(specs: Specs):
    data = 'data:\n  path: rows.jsonl\n  reference: "{a}"\n  prompt: {prompt}\n'
    head, tail = SPEC.split("data:")[0], "reward" + SPEC.split("\nreward")[1]
    for prompt, says in (
        ("'{q'", "data.prompt: a single '{' in template '{q'"),
        ("[{role: user, content: '{}'}]", "data.prompt: {} in template '{}' is not a field name"),
        ("[]", "data.prompt: a list without turns"),
    ):
        (line,) = specs.lines(head + data.replace("{prompt}", prompt) + tail)
        assert line.startswith(f"spec.yaml:7: {says}")


def test_wrong_selection_rule_and_all_its_wrong_options_are_one_line(specs: Specs):
    (line,) = specs.lines(SPEC + "rollout:\n  selection: {kind: entropi}\n")
    assert line.startswith("spec.yaml:8: rollout.selection: kind: unknown selection rule 'entropi'")
    (line,) = specs.lines(SPEC + "rollout:\n  selection: {kind: entropy, options: {a: 1, b: 2}}\n")
    assert "options.a: unknown option" in line
    assert "options.b: unknown option" in line
    assert "\n" not in line


def test_spec_without_an_algorithm_is_not_asked_for_what_algorithms_give(specs: Specs):
    (line,) = specs.lines(SPEC.replace("algorithm: group-pg\n", ""))
    assert line.startswith("spec.yaml:1: algorithm: missing section")


def test_templates_may_be_text_or_messages(specs: Specs):
    (line,) = specs.lines(SPEC.replace('"{q}"', "[{role: user}]"))
    assert "spec.yaml:4: data.prompt.0.content: missing key for 'jsonl'" in line


def test_contradiction_between_options_points_at_the_written_one_and_names_the_giver_of_the_other(specs: Specs):
    (line,) = specs.lines(SPEC + "rollout:\n  new_tokens: 16\n  block_length: 8\n")
    assert line.startswith("spec.yaml:9: rollout.block_length: steps_per_block 16 exceeds block_length 8")
    assert "algorithm group-pg gives temperature: 0.9, steps_total: 32" in line


def test_unknown_key_does_not_hide_a_contradiction(specs: Specs):
    lines = specs.lines(SPEC + "rollout: {new_tokns: 1, steps_per_block: 40, block_length: 32}\n")
    assert len(lines) == 2
    assert any("steps_per_block 40 exceeds block_length 32" in line for line in lines)


@pytest.mark.parametrize("name", ["model", "data", "reward", "algorithm"])
def test_missing_section_lists_installed_kinds(specs: Specs, name: str):
    spec = "".join(line for line in SPEC.splitlines(keepends=True) if not line.startswith(name))
    lines = specs.lines(spec)
    assert any(f"{name}: missing section; name its kind; installed: " in line for line in lines), lines


def test_preset_for_another_kind_of_backend_is_a_problem(specs: Specs):
    lines = specs.lines(SPEC.replace("group-pg", "{kind: group-pg, preset: odd}"))
    assert any("rollout.no_such_option: unknown key for 'native'" in line for line in lines)


def test_preset_may_not_reach_lists_of_components(specs: Specs):
    (line,) = specs.lines(SPEC.replace("group-pg", "{kind: group-pg, preset: far}"))
    assert "a preset of 'group-pg' (dare-pretend) reaches eval" in line


def test_top_level_keys_with_x_are_free(specs: Specs):
    assert specs.plan(SPEC + "x-anchors: {a: &lr 3e-5}\noptim: {lr: *lr}\n").optim.lr == 3e-5


def test_problems_of_several_files_are_reported_together(specs: Specs):
    lines = specs.lines("a: [\n", "b: {\n")
    assert [line.split(":")[0] for line in lines] == ["spec.yaml", "over0.yaml"]


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["kind", "match", "group-pg", "toy", "jsonl", "quiz", "sum", "{q}", "rows.jsonl", "full"])
)
_KEYS = st.text(max_size=6) | st.sampled_from(
    [*SECTIONS, "kind", "preset", "path", "parts", "prompt", "data", "weight", "config", "init", "selection", "name"]
)
_JUNK = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=20
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.dictionaries(st.sampled_from(SECTIONS) | _KEYS, _JUNK, max_size=8))
def test_junk_is_a_user_error_never_another(pretend: Catalog, junk: dict[str, object]):
    with contextlib.suppress(UserError):
        plan_from_resolved(junk, pretend)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60), path=st.text(max_size=12), value=st.text(max_size=12))
def test_junk_text_and_junk_sets_are_user_errors(specs: Specs, text: str, path: str, value: str):
    Path("junk.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    Path("spec.yaml").write_text(SPEC)
    for paths in ([Path("junk.yaml")], [Path("spec.yaml")], [Path("spec.yaml"), Path("junk.yaml")]):
        with contextlib.suppress(UserError):
            resolve_spec(paths, [f"{path}={value}"], specs.catalog)
