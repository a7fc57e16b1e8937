"""Templates over row fields."""

from __future__ import annotations

from typing import Any

import pytest

from dare_core.data.fields import FieldError, nest
from dare_core.data.template import Template

ROW = {
    "id": "a-1",
    "question": "How many?",
    "metadata": {"puzzle": "4000", "numbers": [44, 19, 35], "deep": {"x": True}},
    "score": 0.5,
    "none": None,
    "choices": [{"text": "oxygen"}],
    "a.b": "dotted key",
}


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("{question}", "How many?"),
        ("Puzzle {metadata.puzzle}!", "Puzzle 4000!"),
        ("{metadata.numbers} and {metadata.deep.x}", "[44, 19, 35] and true"),
        ("{{{question}}} {{score}} {score}", "{How many?} {score} 0.5"),
        ("{a.b}", "dotted key"),
        ("no places", "no places"),
        ("", ""),
    ],
)
def test_places_are_filled(text: str, rendered: str) -> None:
    assert Template.parse(text).render(ROW) == rendered


def test_field_values_are_never_read_as_templates() -> None:
    assert Template.parse("{q}").render({"q": "{id} {{ }"}) == "{id} {{ }"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "}",
        "a } b",
        "{}",
        "{ id}",
        "{id }",
        "{id!r}",
        "{score:.2f}",
        "{choices[0]}",
        "{.id}",
        "{id.}",
        "{a..b}",
        "{a{b}}",
    ],
)
def test_anything_but_fields_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="template"):
        Template.parse(text)


def test_attributes_cannot_be_reached() -> None:
    with pytest.raises(FieldError, match=r"no field 'question\.__class__'"):
        Template.parse("{question.__class__}").render(ROW)


def test_a_missing_field_names_those_that_exist_and_the_nearest() -> None:
    with pytest.raises(FieldError) as caught:
        Template.parse("{metadata.puzle}").render(ROW)
    text = str(caught.value)
    assert "no field 'metadata.puzle'" in text
    assert "question, metadata, metadata.puzzle" in text
    assert "did you mean 'metadata.puzzle'" in text


@pytest.mark.parametrize(("name", "reason"), [("none", "is null"), ("metadata", "an object"), ("choices", "a list of")])
def test_values_without_text_are_refused(name: str, reason: str) -> None:
    with pytest.raises(FieldError, match=f"field '{name}'.*{reason}"):
        Template.parse(f"{{{name}}}").render(ROW)


@pytest.mark.parametrize(
    ("text", "field"), [("{a}", "a"), ("{a.b}", "a.b"), (" {a}", None), ("{a}{b}", None), ("{{a}}", None), ("", None)]
)
def test_a_template_of_one_place_says_so(text: str, field: str | None) -> None:
    assert Template.parse(text).only_field == field


@pytest.mark.parametrize(
    ("flat", "nested"),
    [
        ({"a.b": 1, "a.c.d": 2, "e": 3}, {"a": {"b": 1, "c": {"d": 2}}, "e": 3}),
        ({"a.b": 1, "a": {"b": 1, "z": 2}}, {"a": {"b": 1, "z": 2}}),
    ],
)
def test_dotted_names_nest(flat: dict[str, Any], nested: dict[str, Any]) -> None:
    given = dict(flat)
    assert nest(flat) == nested
    assert flat == given
