"""Reading YAML: scalars, places, and everything that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dare_core.spec.nodes import read_file, read_text


def value_of(text: str) -> object:
    root, problems = read_text(text, "f.yaml", "spec")
    assert root is not None
    assert not problems
    return root.plain()


def only_problem(text: str) -> str:
    _, (problem,) = read_text(text, "f.yaml", "spec")
    return str(problem)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E5", 1e5),
        (".5e-3", 0.5e-3),
        ("-2.", -2.0),
        ("+3", 3),
        ("010", 10),
        ("true", True),
        ("False", False),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("NO", "NO"),
        ("~", None),
        ("''", ""),
        ("'1'", "1"),
        ('"true"', "true"),
        ("2026-01-01", "2026-01-01"),
        ("1:30", "1:30"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_are_read_as_people_write_them(text: str, value: object):
    read = value_of(f"a: {text}")
    assert read == {"a": value}
    assert type(read["a"]) is type(value)  # type: ignore[index]


def test_values_remember_the_line_of_their_key():
    root, _ = read_text("a: 1\nb:\n  c:\n    - 2\n    - d: 3\n", "f.yaml", "spec")
    assert root is not None
    places = {path: root.get(path.split(".")).where for path in ("a", "b", "b.c", "b.c.0", "b.c.1.d")}  # type: ignore[union-attr]
    assert places == {"a": "f.yaml:1", "b": "f.yaml:2", "b.c": "f.yaml:3", "b.c.0": "f.yaml:4", "b.c.1.d": "f.yaml:5"}


def test_aliases_copy_values():
    assert value_of("x-a: &a {k: 1}\nb: *a\n") == {"x-a": {"k": 1}, "b": {"k": 1}}


def test_duplicate_keys_are_refused_with_both_lines():
    assert only_problem("a: 1\nb: 2\na: 3\n") == "f.yaml:3: duplicate key 'a', first on line 1; keep one of them"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1, 2\n", "f.yaml:2: not valid YAML"),
        ("a: b: c\n", "f.yaml:1: not valid YAML: mapping values are not allowed"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not valid YAML"),
        ("ok: 1\na: *nowhere\n", "f.yaml:2: not valid YAML: found undefined alias"),
        ("ok: 1\na: !!python/object:os.system x\n", "f.yaml:2: the tag '!!python/object:os.system' is not allowed"),
        ("ok: 1\na: !mine {b: 1}\n", "f.yaml:2: the tag '!mine' is not allowed"),
        ("ok: 1\n<<: {a: 1}\n", "f.yaml:2: merge keys"),
        ("? [a]\n: 1\n", "f.yaml:1: a key must be text"),
        ("a: &a [*a]\n", "f.yaml:1: nested more than 50 deep, or an alias of itself"),
        ("[" * 5000, "not valid YAML"),
        ("ok: 1\na: \x00\n", "f.yaml:2: not valid YAML: the character '\\x00' is not allowed"),
        ("\x07", "f.yaml:1: not valid YAML: the character '\\x07' is not allowed"),
    ],
)
def test_what_is_no_spec_is_refused_with_its_line(text: str, says: str):
    assert says in only_problem(text)


def test_aliases_cannot_blow_up():
    text = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
    )
    assert "more than 50000 values" in only_problem(text)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty; a spec starts with 'dare: 1'"),
        (b"# only a comment\n", "is empty"),
        (b"- a\n", "must hold a mapping of sections, not a list of 1"),
        (b"just text\n", "must hold a mapping of sections, not 'just text' (text)"),
        (b"a: 1\nb: \xff\xfe\n", "f.yaml:2: is not UTF-8 text"),
    ],
)
def test_file_without_a_mapping_is_refused(tmp_path: Path, content: bytes, says: str):
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    root, (problem,) = read_file(path, "spec")
    assert root is None
    assert says in str(problem)


def test_missing_file_says_where_it_looked(tmp_path: Path):
    _, (problem,) = read_file(tmp_path / "no.yaml", "spec")
    assert str(problem) == f"{tmp_path / 'no.yaml'}: no such file; looked in {tmp_path}"


def test_folder_is_no_spec(tmp_path: Path):
    _, (problem,) = read_file(tmp_path, "spec")
    assert "is a folder" in str(problem)


def test_byte_order_mark_is_skipped(tmp_path: Path):
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    root, problems = read_file(path, "spec")
    assert root is not None
    assert root.plain() == {"a": 1}
    assert not problems
