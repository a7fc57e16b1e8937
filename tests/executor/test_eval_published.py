"""Published tables: every setting is one that can be run, and what differs is marked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.executor.test_eval_command import GENERATE, place  # noqa: F401  (a fixture)
from tests.executor.toy_runs import TOYS

from dare_core.cli import eval_published
from dare_core.cli.eval import _calls, _evaluator, _of_evaluator
from dare_core.cli.sources import folder_choices
from dare_core.interfaces import PublishedColumn, PublishedRow, PublishedTable
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed
from dare_core.testing.toy_models import ToyMasked
from dare_eval import task_evaluator
from dare_eval.published.tables import tables
from dare_eval.tasks import library
from dare_eval_opencompass import benchmarks

ROWS = [
    (f"{name}/{column}/{row.name}", row)
    for name, table in tables().items()
    for column, found in table.columns.items()
    for row in found.rows
]


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    ToyMasked(48, 24, 1).save(folder)
    with installed(tmp_path_factory.mktemp("site"), TOYS):
        yield folder


def test_every_row_names_a_task_that_there_is():
    for name, row in ROWS:
        known = {"task": library.find, "opencompass": benchmarks.find}
        if row.kind in known:
            assert known[row.kind](row.task), name


def test_every_setting_can_be_run(toy):
    for name, row in ROWS:
        (call,) = _calls([row], [])
        assert _evaluator(call, {}).config.name == row.name, name
        sets = [text for text in call.sets if not _of_evaluator(text)]
        _, rollout = folder_choices(str(toy), {}, sets)
        if "steps_total" in str(call.sets):
            assert rollout.config.steps_total == row.options["rollout.steps_total"]


def test_names_are_folders_of_their_own():
    for table in tables().values():
        for column in table.columns.values():
            names = [row.name for row in column.rows]
            assert len(set(names)) == len(names)


def test_the_scores_of_dares_table_stand_where_they_belong():
    columns = tables()["dare-table-1"].columns
    score = {(column, row.name): row.score for column, found in columns.items() for row in found.rows}
    assert len(score) == 72
    assert score["llada-8b", "gsm8k"] == pytest.approx(0.7968)
    assert score["sdar-30b-a3b", "mmlu-pro"] == pytest.approx(0.2559)
    assert score["llada2.1-mini", "mbpp"] == pytest.approx(0.6260)


def toy_table(score: float | None = 0.5) -> PublishedTable:
    def row(name: str, *differences: str, questions: int | None = None) -> PublishedRow:
        options = {"rollout.block_length": 2, "eval.seed" if name == "wrong" else "rollout.new_tokens": 4}
        return PublishedRow(
            name=name, kind="task", task="letters.yaml", options=options, score=score, metric=None,
            questions=questions, differences=differences,
        )  # fmt: skip

    rows = (row("as-published"), row("other-prompt", "a prompt of ours"), row("fewer", questions=1000))
    column = PublishedColumn(title="Toy-1B", kinds=("toy-masked",), rows=rows)
    return PublishedTable(
        name="toy-table", version=3, title="Toys", source="nobody (1999)", note="", columns={"toy": column}
    )


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(task_evaluator.TaskEvaluator, "published", classmethod(lambda cls: {"toy-table": toy_table()}))


def test_ours_stands_beside_the_published_score_and_other_protocols_are_marked(place, tmp_path, table):  # noqa: F811
    command = ("eval", "--model", "model", "--preset", "toy-table", "--data", ".", "-o", str(tmp_path))
    done = run_dare_here(*command, folder=place)
    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "toy-table (version 3), Toy-1B"
    assert [line[0] for line in lines if line[2:].startswith(("as-published", "other-prompt", "fewer"))] == [
        " ",
        "!",
        "!",
    ]
    assert "    ! a prompt of ours" in lines
    assert "    ! 10 questions, published over 1000" in lines
    assert all("50.00" in line for line in lines if "as-published" in line)
    protocol = json.loads((tmp_path / "as-published" / "protocol.json").read_text())
    assert protocol["decoding"]["block_length"] == 2


def test_what_the_command_changes_is_marked_too(place, tmp_path, table):  # noqa: F811
    command = ("eval", "--model", "model", "--preset", "toy-table/toy", "--task", "as-published", "--data", ".")
    changed = ("--limit", "3", "--set", "rollout.block_length=4", "--json", "-o", str(tmp_path))
    found = json.loads(run_dare_here(*command, *changed, folder=place).stdout)
    (row,) = found["rows"]
    assert row["differences"] == ["set here: rollout.block_length=4", "--limit 3"]
    assert (row["published"], row["ours"]["count"]) == (0.5, 3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("toy-tabel", "did you mean toy-table"),
        ("toy-table/other", "has no column 'other'"),
    ],
)
def test_an_unknown_preset_is_told_with_what_there_is(place, table, name, said):  # noqa: F811
    result = run_dare_here("eval", "--model", "model", "--preset", name, folder=place)
    assert result.code == 2
    assert said in result.stderr


def test_a_family_with_several_columns_must_name_one(place, tmp_path):  # noqa: F811
    shutil.copytree(place / "model", tmp_path / "m")
    result = run_dare_here("eval", "--model", "m", "--preset", "dare-table-1", folder=tmp_path)
    assert "0 columns for the family 'toy-masked'" in result.stderr
    assert "dare-table-1/llada-8b" in result.stderr


def test_the_list_of_presets_names_their_columns():
    assert GENERATE["task"] == "letters"
    found = eval_published.published()
    assert {"dare-table-1", "llada-instruct", "d1", "sdar-chat", "llada2", "dream-instruct"} <= set(found)
