"""The specs that show learning fit every algorithm, and their rows and tables say what they should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.learning.pairs import pairs_of
from benchmarks.learning.rewards import given_numbers
from benchmarks.learning.rows import countdown, countdown_row, reordered, sudoku, write_rows
from benchmarks.learning.runs import ALGORITHMS, TASKS, Run
from benchmarks.learning.tables import reward_table, spark

from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.testing.command import run_dare_here
from dare_core.types import Prompt
from dare_llada.testing import write_llada_checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Rows of both tasks, made pairs, and a tiny model in the start's place."""
    folder = tmp_path_factory.mktemp("learning")
    write_rows(folder / "data")
    for task in TASKS:
        for name, prompt in ((f"{task}-pairs", "1"), (f"{task}-pairs-heldout", "2")):
            row = {"id": prompt, "prompt": prompt, "chosen": "3", "rejected": "4"}
            (folder / "data" / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    return folder, write_llada_checkpoint(folder / "model", max_sequence_length=64)


def test_every_installed_algorithm_has_its_overlay():
    installed = {item.component.kind for item in Catalog.load().components(Slot.ALGORITHM)}
    assert installed == set(ALGORITHMS)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_specs_fit_every_algorithm(task, algorithm, places, tmp_path):
    folder, model = places
    run = Run(task, algorithm, 0, () if algorithm == "sft" else (f"model.path={model}",))
    spec, *rest = run.arguments
    moved = [moved_spec(Path(word), folder, tmp_path) if word.endswith(".yaml") else word for word in (spec, *rest)]
    result = run_dare_here("validate", *moved, folder=ROOT)
    assert result.code == 0, result.stderr


def moved_spec(path: Path, folder: Path, target: Path) -> str:
    """A copy whose rows lie in ``folder``."""
    copy = target / path.name
    copy.write_text(path.read_text().replace("runs/learning/data", str(folder / "data")))
    return str(copy)


def test_countdown_rows_are_solved_by_plus_and_minus_and_none_is_held_out():
    training, held_out = countdown()
    for row in (*training[:50], *held_out[:50]):
        assert eval(row["answer"]) == row["target"]
        assert sorted(row["numbers"]) == sorted(map(int, row["answer"].replace("-", "+").split("+")))
    problems = [{(tuple(sorted(row["numbers"])), row["target"]) for row in rows} for rows in (training, held_out)]
    assert not problems[0] & problems[1]


def test_a_reordered_problem_keeps_the_order_it_is_asked_in():
    row = countdown_row("a", [44, 19, 35], 98)
    answers = [other["answer"] for other in reordered(row)]
    assert answers[0] == "44+19+35"
    assert answers[-1] == "35+19+44"
    assert len({other["id"] for other in reordered(row)}) == 6


def test_problems_that_need_other_operators_or_numbers_are_left_out():
    assert countdown_row("a", [82, 35, 4], 58) is None
    assert countdown_row("a", [10, 11, 12], 99) is None


@pytest.mark.parametrize(
    ("response", "counts"),
    [("44-19+35\n", True), ("35+44+19", True), ("44+19", False), ("44+19+35+10", False), ("44*19+35", False)],
)
def test_partial_credit_is_for_exactly_the_given_numbers(response, counts):
    prompt = Prompt(id="a", index=0, text="", meta={"numbers": [44, 19, 35], "target": 98})
    assert given_numbers(prompt, response) is counts


def test_no_held_out_grid_is_trained_on():
    training, held_out = sudoku()
    assert not {row["answer"] for row in training} & {row["answer"] for row in held_out}


def test_a_pair_is_the_best_and_the_worst_response_to_a_prompt():
    scores = {"a": [0.5, 1.0, 0.25, 1.0, 0.25], "b": [0.5, 0.5], "c": [None, 0.5]}
    items = [
        {"id": name, "prompt": name.upper(), "response": f"{name}{place}", "score": score}
        for name, own in scores.items()
        for place, score in enumerate(own)
    ]
    assert pairs_of(items) == [{"id": "a", "prompt": "A", "chosen": "a1", "rejected": "a2"}]


def test_the_table_shows_each_seed_and_the_mean_curve(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [Run("sudoku", "d1", seed) for seed in (0, 1)]
    for run, rewards in zip(runs, ([0.5, 0.75], [0.5, 1.0]), strict=True):
        (run.folder / "spec").mkdir(parents=True)
        (run.folder / "spec" / "resolved.yaml").write_text("optim:\n  lr: 0.0003\n")
        lines = [{"sampled/reward": reward, "sampled/correct_rate": reward / 2} for reward in rewards]
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert reward_table(runs)[2] == (
        "| `d1` | 3e-4 | 0.500 -> 0.750, 0.500 -> 1.000 | +0.375 | 25.0 % -> 43.8 % | 0.500 0.875 ▁█ |"
    )


def test_a_flat_curve_is_drawn():
    assert spark([0.5, 0.5]) == "▁▁"
