"""Which layer gives a value: command line > later overlay > spec > preset > wishes > default."""

from __future__ import annotations

import pytest
from tests.control.spec_plugins import SPEC, Specs

from dare_core.components import Slot
from dare_core.spec.plan import RunPlan
from dare_core.spec.resolve import plan_from_resolved

WITH_PRESET = SPEC.replace("algorithm: group-pg", "algorithm: {kind: group-pg, preset: full}")


def value(plan: RunPlan, path: str) -> object:
    found: object = plan.resolved
    for part in path.split("."):
        found = found[int(part)] if isinstance(found, list) else found[part]  # type: ignore[index]
    return found


def given(plan: RunPlan, path: str) -> tuple[object, str, str]:
    origin = plan.origins[path]
    return value(plan, path), origin.source, origin.where


def test_each_layer_wins_over_those_below(specs: Specs):
    spec = WITH_PRESET + "optim: {lr: 4e-4}\n"
    over, later = "optim: {lr: 3e-4}\n", "# later\noptim: {lr: 2e-4}\n"
    assert given(specs.plan(spec, over, later, sets=("optim.lr=1e-4",)), "optim.lr") == (
        1e-4,
        "command line",
        "--set optim.lr=1e-4",
    )
    assert given(specs.plan(spec, over, later), "optim.lr") == (2e-4, "overlay", "over1.yaml:2")
    assert given(specs.plan(spec, over), "optim.lr") == (3e-4, "overlay", "over0.yaml:1")
    assert given(specs.plan(spec), "optim.lr") == (4e-4, "spec", "spec.yaml:7")
    assert given(specs.plan(WITH_PRESET), "optim.lr") == (5e-7, "preset", "full of group-pg")
    assert given(specs.plan(), "optim.lr") == (3e-6, "algorithm", "group-pg")
    assert given(specs.plan(), "optim.eps") == (1e-8, "default", "optim")


def test_algorithms_wishes_win_over_those_of_others(specs: Specs):
    plan = specs.plan()
    assert given(plan, "rollout.temperature") == (0.9, "algorithm", "group-pg")
    assert given(plan, "rollout.top_k") == (7, "likelihood", "one-step-x")
    assert given(plan, "algorithm.beta") == (0.5, "algorithm", "group-pg")


def test_preset_of_one_section_reaches_others_and_leaves_sections_out(specs: Specs):
    assert specs.plan().peft is not None
    plan = specs.plan(WITH_PRESET)
    assert plan.peft is None
    assert given(plan, "peft") == (None, "preset", "full of group-pg")
    assert given(plan, "rollout.top_p") == (0.7, "preset", "full of group-pg")
    assert given(plan, "algorithm.clip_range") == (0.3, "preset", "full of group-pg")


def test_section_that_a_preset_leaves_out_starts_afresh_when_written(specs: Specs):
    plan = specs.plan(WITH_PRESET + "peft: {alpha: 8}\n")
    assert plan.peft is not None
    assert (plan.peft.alpha, plan.peft.r) == (8, 32)


def test_presets_of_several_sections_add_up(specs: Specs):
    plan = specs.plan(WITH_PRESET + "likelihood: {preset: many}\n")
    assert given(plan, "likelihood.draws") == (64, "preset", "many of one-step-x")
    assert given(plan, "optim.lr") == (5e-7, "preset", "full of group-pg")


def test_wish_for_an_option_that_the_kind_lacks_is_void(specs: Specs):
    assert "no_such_option" not in specs.plan().resolved["rollout"]


def test_wishes_for_another_kind_do_not_apply(specs: Specs):
    spec = SPEC.replace("algorithm: group-pg", "algorithm: imitate").replace("reward: match\n", "")
    spec = spec.replace('reference: "{a}"', 'completion: "{a}"') + "optim: {batch_size: 4}\n"
    plan = specs.plan(spec)
    assert given(plan, "likelihood.draws") == (1, "default", "elbo-x")
    assert Slot.ROLLOUT not in plan
    assert not plan.online


def test_default_kinds_where_the_spec_is_silent(specs: Specs):
    plan = specs.plan()
    kinds = {slot: plan[slot].name for slot in plan.choices}
    assert kinds == {
        Slot.MODEL: "toy",
        Slot.DATA: "jsonl",
        Slot.ROLLOUT: "native",
        Slot.REWARD: "match",
        Slot.LIKELIHOOD: "one-step-x",
        Slot.ALGORITHM: "group-pg",
        Slot.ENGINE: "local",
    }
    assert plan.origins["model.kind"].where == "config.json of toy"
    assert plan.origins["likelihood.kind"].source == "algorithm"


def test_overlay_that_changes_a_kind_drops_the_old_kinds_options(specs: Specs):
    spec = SPEC.replace("group-pg", "{kind: replay, clip_range: 0.7}").replace(
        "model: {path", "model: {dtype: bfloat16, path"
    )
    spec += "rollout: {kind: native, ties: exact, new_tokens: 32}\noptim: {batch_size: 6}\n"
    plan = specs.plan(spec, "algorithm: group-pg\nrollout: quick\nmodel: {kind: toy, path: toy}\n")
    assert value(plan, "algorithm.clip_range") == 0.2
    assert value(plan, "rollout.new_tokens") == 32
    assert "ties" not in plan.resolved["rollout"]
    assert value(plan, "model.dtype") == "bfloat16"


def test_overlay_with_the_qualified_name_of_the_same_kind_keeps_options(specs: Specs):
    spec = SPEC.replace("group-pg", "{kind: group-pg, clip_range: 0.7}")
    plan = specs.plan(spec, "algorithm: {kind: 'dare-pretend:group-pg'}\n")
    assert value(plan, "algorithm.clip_range") == 0.7
    assert plan.resolved["algorithm"]["kind"] == "dare-pretend:group-pg"


def test_overlays_merge_mappings_deep_and_replace_lists(specs: Specs):
    spec = (
        SPEC.replace("match", "{kind: sum, parts: [match, {kind: match, weight: 3}]}") + "optim: {betas: [0.1, 0.2]}\n"
    )
    plan = specs.plan(spec, "optim: {lr: 1e-2, betas: [0.3, 0.4]}\nreward: {parts: [match]}\n")
    assert plan.optim.betas == (0.3, 0.4)
    assert len(value(plan, "reward.parts")) == 1  # type: ignore[arg-type]


def test_naming_one_of_two_alternatives_drops_the_other_of_a_lower_layer(specs: Specs):
    plan = specs.plan(SPEC + "rollout: {steps_per_block: 8}\n")
    assert (value(plan, "rollout.steps_per_block"), value(plan, "rollout.steps_total")) == (8, None)


def test_null_is_a_value_where_the_option_has_one_and_silence_elsewhere(specs: Specs):
    spec = SPEC.replace("group-pg", "{kind: group-pg, group_size: 4, bound: 2.5}") + "peft: {r: 4}\n"
    plan = specs.plan(spec, "algorithm: {group_size: null, bound: null}\npeft: null\n")
    assert given(plan, "algorithm.group_size") == (6, "default", "group-pg")
    assert given(plan, "algorithm.bound") == (None, "overlay", "over0.yaml:1")
    assert plan.peft is None


def test_set_reaches_into_lists_and_keeps_the_rest(specs: Specs):
    spec = SPEC.replace("match", "{kind: sum, parts: [{kind: match, correct_score: 2.0}, match]}")
    plan = specs.plan(spec, sets=("reward.parts.0.weight=0.5", "reward.parts.1.kind=match", "optim.betas=[0.5, 0.6]"))
    assert value(plan, "reward.parts.0.weight") == 0.5
    assert value(plan, "reward.parts.0.correct_score") == 2.0
    assert plan.origins["reward.parts.0.weight"].source == "command line"
    assert plan.origins["reward.parts.0.correct_score"].source == "spec"
    assert plan.optim.betas == (0.5, 0.6)


def test_set_of_a_kind_does_not_drop_options_set_beside_it(specs: Specs):
    plan = specs.plan(sets=("rollout.threshold=0.5", "rollout.kind=quick"))
    assert value(plan, "rollout.threshold") == 0.5


def test_set_reaches_a_single_evaluation_with_or_without_its_position(specs: Specs):
    spec = SPEC + "eval: {kind: quiz, limit: 1}\n"
    for path in ("eval.limit", "eval.0.limit"):
        assert given(specs.plan(spec, sets=(f"{path}=9",)), "eval.0.limit") == (9, "command line", f"--set {path}=9")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("optim.lr", "--set optim.lr: is not a dotted path, '=' and a value; write it as path=value"),
        ("=3", "is not a dotted path"),
        ("optim..lr=3", "is not a dotted path"),
        ("optim.lr=[1", "--set optim.lr=[1: not valid YAML"),
        ("data.prompt.x.y=3", "--set data.prompt.x.y=3: data.prompt: "),
        ("reward.parts.7.weight=1", "reward.parts.7.weight: '7' is no position in a list of 1"),
        ("reward.parts.x.weight=1", "'x' is no position in a list of 1 of 'parts'; positions: 0..0"),
        ("optim.lrr=3", "--set optim.lrr=3: optim.lrr: unknown key for 'optim'; did you mean 'lr'?"),
        ("nowhere.x=3", "--set nowhere.x=3: nowhere: unknown section"),
    ],
)
def test_bad_set_is_a_problem_that_repeats_it(specs: Specs, text: str, says: str):
    (line,) = specs.lines(SPEC.replace("match", "{kind: sum, parts: [match]}"), sets=(text,))
    assert says in line


def test_resolved_data_resolves_to_the_same_plan(specs: Specs):
    spec = WITH_PRESET.replace("match", "{kind: sum, parts: [{kind: match, weight: 2}, match]}")
    spec += "eval: [{kind: quiz, data: {path: rows.jsonl, prompt: '{q}'}, reward: match}, {kind: quiz, name: b}]\n"
    plan = specs.plan(spec)
    again = plan_from_resolved(plan.resolved, specs.catalog)
    assert again.resolved == plan.resolved
    assert (again.run, again.optim, again.peft, again.facts) == (plan.run, plan.optim, plan.peft, plan.facts)
    assert again.choices == plan.choices
    assert again.evals == plan.evals


def test_every_resolved_value_has_an_origin(specs: Specs):
    spec = SPEC.replace("match", "{kind: sum, parts: [{kind: match, weight: 2}, match]}")
    spec += "eval: {kind: quiz, data: {path: rows.jsonl, prompt: '{q}', limit: 3}}\n"
    plan = specs.plan(spec)
    assert given(plan, "eval.0.data.limit") == (3, "spec", "spec.yaml:7")
    assert given(plan, "eval.0.data.kind") == ("jsonl", "default", "ending of rows.jsonl")
    assert given(plan, "reward.parts.0.weight") == (2.0, "spec", "spec.yaml:5")
    assert given(plan, "reward.parts.0.compare")[1] == "default"
    for path in plan.origins:
        value(plan, path)
