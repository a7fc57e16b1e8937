"""Conversations become demonstrations with the turns that are learnt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dare_core.data.config import JsonLinesSection
from dare_core.data.examples import ExampleSet
from dare_core.data.jsonl import JsonLines
from dare_core.errors import UserError
from dare_core.types import Demonstration

TURNS = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "a1", "train": True},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "content": "a2", "train": False},
    {"role": "user", "content": "q3"},
    {"role": "assistant", "content": "a3"},
]


def read(folder: Path, turns: Any, **options: Any) -> Demonstration:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({"turns": turns}) + "\n", encoding="utf-8")
    config = JsonLinesSection(path=str(path), messages="turns", **options)
    return ExampleSet.read(config, JsonLines(config)).demonstrations[0]


@pytest.mark.parametrize(
    ("which", "completion", "before", "earlier"),
    [("last", "a3", 6, ()), ("all", "a3", 6, (2, 4)), ("one", "a3", 6, (2, 4)), ("marked", "a1", 2, ())],
)
def test_the_option_says_which_answers_are_learnt_and_where_the_row_ends(
    tmp_path: Path, which: str, completion: str, before: int, earlier: tuple[int, ...]
) -> None:
    made = read(tmp_path, TURNS, trained_turns=which)
    assert (made.completion, len(made.prompt.messages), made.earlier) == (completion, before, earlier)
    assert made.up_to(2).completion == "a1"
    assert [turn.content for turn in made.up_to(2).prompt.messages] == ["s", "q1"]


def test_a_mark_may_have_another_name(tmp_path: Path) -> None:
    turns = [{**turn, "learn": turn["content"] in ("a1", "a2")} for turn in TURNS]
    made = read(tmp_path, turns, trained_turns="marked", turn_mark="learn")
    assert (made.completion, made.earlier) == ("a2", (2,))


@pytest.mark.parametrize("which", [None, "last", "all", "one"])
def test_a_name_for_marks_is_refused_where_none_are_read(which: str | None) -> None:
    with pytest.raises(ValidationError, match="'turn_mark' says which turns 'trained_turns: marked' learns"):
        JsonLinesSection(path="rows.jsonl", messages="turns", trained_turns=which, turn_mark="learn")


@pytest.mark.parametrize(
    ("turns", "which", "reason"),
    [
        (TURNS[:6], "all", "end with 'user'; a demonstration ends with the assistant's"),
        (TURNS[:6], "last", "end with 'user'"),
        (TURNS[2:], "all", "begin with an answer; nothing precedes it"),
        ([*TURNS[:2], {"role": "assistant", "content": " "}], "last", "turn 2 of 'turns' is an empty answer"),
        (TURNS[3:], "marked", "no turn of 'turns' is marked"),
        ([{**TURNS[1], "train": True}, TURNS[2]], "marked", "turn 0 of 'turns' is marked, but only the assistant's"),
        ([TURNS[1], {**TURNS[2], "train": 1}], "marked", "'train' of turn 1 .* must be true or false, not 1"),
        ([], "all", "must be a list of turns"),
    ],
)
def test_unusable_conversations_are_malformed_and_named(tmp_path: Path, turns: Any, which: str, reason: str) -> None:
    with pytest.raises(UserError, match=f"row 'rows-0': .*{reason}|{reason}"):
        read(tmp_path, turns, trained_turns=which)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"prompt": "{q}", "trained_turns": "all"}, "name their field in 'messages'"),
        ({"messages": "turns", "trained_turns": "all", "completion": "{a}"}, "leave out completion"),
        ({"messages": "turns", "trained_turns": "first"}, "trained_turns"),
    ],
)
def test_the_option_belongs_to_conversations(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        JsonLinesSection(path="rows.jsonl", **options)


def test_conversations_without_the_option_are_prompts_and_with_it_demonstrations() -> None:
    assert JsonLinesSection(path="rows.jsonl", messages="turns").gives == {"prompts"}
    trained = JsonLinesSection(path="rows.jsonl", messages="turns", trained_turns="all")
    assert trained.gives == {"prompts", "demonstrations"}
