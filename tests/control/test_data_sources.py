"""Readers of local files."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dare_core.data.config import DatasetsSection, JsonLinesSection, ParquetSection
from dare_core.data.folders import DatasetsFolder
from dare_core.data.jsonl import JsonLines
from dare_core.data.parquet import Parquet
from dare_core.errors import Problem, UserError

ROWS = Path(__file__).parents[1] / "data" / "gsm8k_train.jsonl"


def jsonl(path: Path) -> JsonLines:
    return JsonLines(JsonLinesSection(path=str(path), prompt="{prompt}"))


def fields(source: Any) -> list[Any]:
    return [row for _, row in source.rows()]


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def test_json_lines_are_read_with_their_line_numbers(rows: list[dict[str, Any]]) -> None:
    read = list(jsonl(ROWS).rows())
    assert [row for _, row in read] == rows
    assert read[2][0] == f"{ROWS}:3"


def test_gzip_is_recognised_by_content(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(gzip.compress(ROWS.read_bytes()))
    assert fields(jsonl(path)) == rows


def test_a_truncated_gzip_file_is_an_error_and_not_fewer_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(ROWS.read_bytes())[:-200])
    with pytest.raises(UserError, match=r"rows\.jsonl\.gz: cannot be read"):
        fields(jsonl(path))


@pytest.mark.parametrize("byte", [12, 200])
def test_a_damaged_gzip_file_is_an_error_of_the_input(tmp_path: Path, byte: int) -> None:
    packed = bytearray(gzip.compress(ROWS.read_bytes()))
    packed[byte : byte + 8] = bytes(255 - value for value in packed[byte : byte + 8])
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(packed)
    with pytest.raises(UserError, match=r"rows\.jsonl\.gz: cannot be read"):
        list(jsonl(path).rows())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (rb'{"a": ["\ud800"]}', "lone surrogate"),
        (rb'{"\uDFFF": 1}', "lone surrogate"),
    ],
)
def test_lines_that_no_tokenizer_could_take_are_given_as_problems(tmp_path: Path, line: bytes, says: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line + b"\n" + rb'{"a": "\ud83d\ude00"}' + b"\n")
    (_, problem), (_, row) = jsonl(path).rows()
    assert says in str(problem)
    assert row == {"a": "😀"}


def test_lines_that_hold_no_object_are_given_as_problems(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n{"a": \n[1]\n{"a": NaN}\n"\xff"\n{"a": 2}\n')
    read = list(jsonl(path).rows())
    assert [where.rpartition(":")[2] for where, _ in read] == ["1", "3", "4", "5", "6", "7"]
    assert [row for _, row in read if not isinstance(row, Problem)] == [{"a": 1}, {"a": 2}]
    assert "one JSON object, not list" in str(read[2][1])


def test_folders_and_patterns_are_read_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl"):
        (tmp_path / name).write_text(json.dumps({"id": name}) + "\n")
    (tmp_path / "notes.txt").write_text("not read")
    assert [row["id"] for row in fields(jsonl(tmp_path))] == ["a.jsonl", "b.jsonl"]
    assert [row["id"] for row in fields(jsonl(tmp_path / "[b]*.jsonl"))] == ["b.jsonl"]


def test_a_missing_file_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        fields(jsonl(tmp_path / "no" / "rows.jsonl"))
    assert str(tmp_path / "no" / "rows.jsonl") in str(caught.value)
    assert f"{tmp_path} is the last folder that exists" in str(caught.value)


def test_an_empty_folder_says_which_endings_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file ending in \.jsonl or \.jsonl\.gz"):
        fields(jsonl(tmp_path))


def test_a_fingerprint_follows_the_content(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    shutil.copy(ROWS, path)
    assert jsonl(path).fingerprint() == jsonl(ROWS).fingerprint()
    path.write_text(path.read_text() + "\n")
    assert jsonl(path).fingerprint() != jsonl(ROWS).fingerprint()


@pytest.mark.parametrize("option", [{"prompt": "{"}, {"prompt": "a", "reference": "{x!r}"}])
def test_a_malformed_template_is_refused_with_the_spec(option: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="template"):
        JsonLinesSection(path="rows.jsonl", **option)  # type: ignore[arg-type]


def test_parquet_gives_the_same_rows(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet", row_group_size=7)
    source = Parquet(ParquetSection(path=str(tmp_path / "rows.parquet"), prompt="{prompt}"))
    read = list(source.rows())
    assert [row for _, row in read] == rows
    assert read[9][0].endswith("rows.parquet[9]")


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_text("text")
    with pytest.raises(UserError, match=r"rows\.parquet: not a readable Parquet file"):
        fields(Parquet(ParquetSection(path=str(tmp_path), prompt="{prompt}")))


def test_saved_datasets_are_read_by_split(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(rows)
    whole.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": whole, "test": whole.select(range(3))}).save_to_disk(tmp_path / "many")

    def source(name: str, split: str | None) -> DatasetsFolder:
        return DatasetsFolder(DatasetsSection(path=str(tmp_path / name), split=split, prompt="{prompt}"))

    assert fields(source("one", None)) == rows
    assert fields(source("many", "test")) == rows[:3]
    assert source("many", "train").fingerprint() != source("many", "test").fingerprint()
    with pytest.raises(UserError, match=r"no split was chosen.*may be test, train"):
        fields(source("many", None))
    with pytest.raises(UserError, match="no split 'dev'"):
        fields(source("many", "dev"))
    with pytest.raises(UserError, match="one unnamed split"):
        fields(source("one", "train"))


def test_a_folder_of_something_else_is_not_read_as_a_dataset(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(UserError, match="not a folder written by save_to_disk"):
        fields(DatasetsFolder(DatasetsSection(path=str(tmp_path), prompt="{prompt}")))


@pytest.mark.parametrize("line", ['{"a": 1, "b": 2, "a": 3}', '{"b": {"a": 1, "a": 1}}'])
def test_a_field_given_twice_makes_a_line_malformed(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"a": 0}}\n{line}\n', encoding="utf-8")
    first, second = JsonLines(JsonLinesSection(path=str(path), prompt="{a}")).rows()
    assert first[1] == {"a": 0}
    assert isinstance(second[1], Problem)
    assert (second[1].message, second[1].where) == ("not JSON: field 'a' is given twice", f"{path}:2")
