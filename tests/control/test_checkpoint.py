"""Checkpoints are complete or absent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dare_core.errors import UserError
from dare_core.run.checkpoint import (
    COMPLETE,
    Checkpoint,
    complete_checkpoints,
    drop_after,
    latest_complete,
    retain,
    verify,
    writing,
)


def save(parent: Path, step: int, content: str = "weights") -> Path:
    with writing(parent, step) as folder:
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_text(content)
        (folder / "trainer.json").write_text("{}")
    return parent / f"step_{step}"


def steps(parent: Path) -> list[int]:
    return [checkpoint.step for checkpoint in complete_checkpoints(parent)]


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        save(tmp_path, step)
    assert steps(tmp_path) == [2, 9, 10]
    assert latest_complete(tmp_path) == Checkpoint(10, tmp_path / "step_10")


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert latest_complete(tmp_path / "checkpoints") is None


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    save(tmp_path, 1)

    def fail_halfway() -> None:
        with writing(tmp_path, 2) as folder:
            (folder / "half").write_text("x")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_halfway()
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_a_killed_writer_leaves_the_earlier_checkpoint_and_the_next_write_clears_up(tmp_path: Path) -> None:
    save(tmp_path, 1)
    script = (
        "import os, pathlib, sys\n"
        "from dare_core.run.checkpoint import writing\n"
        "with writing(pathlib.Path(sys.argv[1]), 2) as folder:\n"
        "    (folder / 'half').write_text('x')\n"
        "    os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 9
    assert steps(tmp_path) == [1]
    assert len(os.listdir(tmp_path)) == 2
    save(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["step_1", "step_2"]


def test_writing_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1, "old")
    folder = save(tmp_path, 1, "new")
    assert (folder / "model" / "model.safetensors").read_text() == "new"
    assert os.listdir(tmp_path) == ["step_1"]


def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path: Path) -> None:
    folder = save(tmp_path, 1, "old")
    folder.rename(tmp_path / ".step_1.old")
    drop_after(tmp_path, 1)
    assert steps(tmp_path) == [1]


def test_an_empty_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing was written"), writing(tmp_path, 1):
        pass


def test_verify_accepts_what_was_written(tmp_path: Path) -> None:
    verify(Checkpoint(1, save(tmp_path, 1)))


def test_verify_names_missing_short_and_altered_files(tmp_path: Path) -> None:
    with writing(tmp_path, 1) as folder:
        for name in ("gone", "short", "altered", "good"):
            (folder / name).write_text("0123456789")
    folder = tmp_path / "step_1"
    (folder / "gone").unlink()
    (folder / "short").write_text("0123")
    (folder / "altered").write_text("0123456780")
    with pytest.raises(UserError) as caught:
        verify(Checkpoint(1, folder))
    text = str(caught.value)
    assert "gone: the file is missing" in text
    assert "short: 4 bytes, 10 were written" in text
    assert "altered: the content was altered" in text
    assert "good" not in text


@pytest.mark.parametrize("content", ["", "[]", '{"files": {"a": 3}}', "{"])
def test_verify_names_an_unreadable_list_of_files(tmp_path: Path, content: str) -> None:
    folder = save(tmp_path, 1)
    (folder / COMPLETE).write_text(content)
    with pytest.raises(UserError, match=r"complete\.json: cannot be read"):
        verify(Checkpoint(1, folder))


def test_retention_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        save(tmp_path, step)
    assert retain(tmp_path, newest=2, best=2) == [1, 3]
    assert steps(tmp_path) == [2, 4, 5]


def test_retention_never_counts_or_touches_what_is_not_complete(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / COMPLETE).unlink()
    assert retain(tmp_path, newest=1) == []
    assert sorted(os.listdir(tmp_path)) == ["step_1", "step_2"]


def test_retention_refuses_to_keep_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        retain(tmp_path, newest=0)
