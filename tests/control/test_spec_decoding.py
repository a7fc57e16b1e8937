"""Decoding by each family's published sampler: what specs get from the model they name, and what they refuse."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from tests.control.spec_plugins import SPEC, Specs, needs_official_plugins

from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.spec.plan import RunPlan
from dare_core.spec.sections import RolloutSection

needs_official_plugins()

CHECKPOINTS = Path(__file__).parents[1] / "goldens" / "data" / "models"
IDS = "mask_id: 250, eos_ids: [251]"


@cache
def catalog() -> Catalog:
    return Catalog.load()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Specs:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"q": "1+1", "a": "2"}\n')
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").write_text("{}")
    return Specs(catalog())


def spec(kind: str, algorithm: str, more: str = "", model: str = "") -> str:
    """Golden checkpoints carry no tokenizer; that of ``words`` is not read here."""
    folder = CHECKPOINTS / kind.replace("-", "_") / "checkpoint"
    section = f"{{kind: {kind}, path: {folder}, tokenizer: words, {IDS}{model}}}"
    return SPEC.replace("{path: toy}", section).replace("group-pg", algorithm) + more


def rollout(plan: RunPlan) -> RolloutSection:
    config = plan[Slot.ROLLOUT].config
    assert isinstance(config, RolloutSection)
    return config


@pytest.mark.parametrize("kind", ["sdar", "sdar-moe"])
def test_native_decodes_sdar_by_its_published_sampler(world: Specs, kind: str):
    plan = world.plan(spec(kind, "d1"))
    assert plan.facts is not None
    settings = rollout(plan).settings(plan.facts.layout)
    assert (settings.selection.kind, settings.eos_rule, settings.schedule) == (
        "dynamic-threshold",
        "stop",
        "even-block",
    )
    assert settings.whole_blocks
    assert plan.origins["rollout.selection.kind"].source == "model"
    assert (settings.block_length, settings.steps_per_block) == (4, 4), (
        "a block model's own lengths, not the algorithm's"
    )
    assert settings.temperature == 0.9, "what does not depend on the model is the algorithm's"


def test_people_may_give_block_models_other_lengths(world: Specs):
    plan = world.plan(spec("sdar", "d1", "rollout: {block_length: 8, steps_per_block: 2, eos_rule: fill}\n"))
    assert plan.facts is not None
    settings = rollout(plan).settings(plan.facts.layout)
    assert (settings.block_length, settings.steps_per_block, settings.eos_rule) == (8, 2, "fill")


def test_steps_that_the_models_blocks_cannot_take_are_refused_before_loading(world: Specs):
    lines = world.lines(spec("sdar", "d1", "rollout: {steps_per_block: 8}\n"))
    assert any("steps_per_block 8 exceeds block_length 4" in line for line in lines)


def test_dream_keeps_its_schedule_under_an_algorithm_that_chooses_lengths(world: Specs):
    plan = world.plan(spec("dream", "coupled-grpo", "rollout: {new_tokens: 64, steps_total: 64}\n"))
    assert (rollout(plan).schedule, rollout(plan).selection.kind) == ("linear-time", "entropy")
    assert rollout(plan).settings().steps_per_block == 64


@pytest.mark.parametrize(("preset", "bounds"), [("edit-quality", (0.7, 0.5)), ("edit-speed", (0.5, 0.0))])
def test_llada2_edits_by_preset(world: Specs, preset: str, bounds: tuple[float, float]):
    section = rollout(world.plan(spec("llada2", "d1", model=f", preset: {preset}")))
    options = section.selection.options
    assert section.selection.kind == "joint-threshold"
    assert (options["threshold"], options["edit_threshold"]) == bounds
    assert (section.eos_rule, section.whole_blocks) == ("fill", True)


def test_replay_of_commit_steps_is_refused_where_the_rule_edits(world: Specs):
    assert world.plan(spec("llada2", "cj-grpo"))
    lines = world.lines(spec("llada2", "cj-grpo", model=", preset: edit-quality"))
    assert any(
        "needs 'commit-step'" in line and "'joint-threshold' replaces committed tokens" in line for line in lines
    )
