"""Rows become examples, and every row is accounted for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dare_core.data.config import JsonLinesSection
from dare_core.data.examples import LONG_PROMPT, LONG_ROW, MALFORMED, ExampleSet
from dare_core.data.jsonl import JsonLines
from dare_core.errors import UserError
from dare_core.interfaces import TextCodec
from dare_core.spec.sections import MessageTemplate
from dare_core.types import Message, Prompt

DATA = Path(__file__).parents[1] / "data"


class Words(TextCodec):
    """One token per word; answers end with one more."""

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        text = prompt.text if prompt.text is not None else self.render(prompt.messages)
        return [0] * len(text.split())

    def encode_completion(self, text: str) -> list[int]:
        return [0] * (len(text.split()) + 1)

    def decode(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError

    def render(self, messages: Sequence[Message]) -> str:
        return " ".join(message.content for message in messages)


def read(path: Path, codec: TextCodec | None = None, **options: Any) -> ExampleSet:
    config = JsonLinesSection(path=str(path), **options)
    return ExampleSet.read(config, JsonLines(config), codec)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(*rows: Mapping[str, Any] | str) -> Path:
        path = tmp_path / "rows.v1.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return written


def test_chat_prompts_carry_reference_and_nested_meta() -> None:
    examples = read(
        DATA / "sudoku4x4_train.jsonl",
        prompt=(
            MessageTemplate(role="system", content="Solve."),
            MessageTemplate(role="user", content="{prompt}\nPuzzle: {metadata.puzzle}"),
        ),
        reference="{answer}",
        meta=("metadata.puzzle", "task"),
    )
    assert len(examples) == 40
    assert examples.demonstrations == examples.pairs == ()
    first = examples.prompts[0]
    assert (first.id, first.index, first.reference) == ("sudoku-train-00000", 0, "4213312413422431")
    assert first.meta == {"metadata": {"puzzle": "4000312403000001"}, "task": "sudoku4x4"}
    assert first.messages[0] == Message("system", "Solve.")
    assert first.messages[1].content.endswith("Puzzle: 4000312403000001")


def test_demonstrations_pair_each_prompt_with_its_answer() -> None:
    examples = read(DATA / "sft_gsm8k_train.jsonl", prompt="{prompt}\n", completion="{answer}")
    assert [d.prompt for d in examples.demonstrations] == list(examples.prompts)
    assert examples.demonstrations[0].completion.endswith("#### 72")
    assert examples.demonstrations[0].prompt.text is not None


def test_pairs_take_their_turns_from_a_field() -> None:
    examples = read(DATA / "preference_demo.jsonl", messages="messages", chosen="{chosen}", rejected="{rejected}")
    rows = [json.loads(line) for line in (DATA / "preference_demo.jsonl").read_text().splitlines()]
    assert [len(p.prompt.messages) for p in examples.pairs] == [len(row["messages"]) for row in rows]
    assert [(p.chosen, p.rejected) for p in examples.pairs] == [(row["chosen"], row["rejected"]) for row in rows]


def test_answers_given_as_turns_are_the_assistants(write: Any) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]
    other = [{"role": "assistant", "content": "no"}]
    examples = read(write({"q": "q", "good": turns, "bad": other}), prompt="{q}", chosen="{good}", rejected="{bad}")
    assert (examples.pairs[0].chosen, examples.pairs[0].rejected) == ("yes", "no")


def test_rows_without_id_are_named_by_file_and_position(write: Any) -> None:
    examples = read(write({"q": "a"}, {"q": "b", "id": 7}, {"q": "c", "id": None}), prompt="{q}")
    assert [p.id for p in examples.prompts] == ["rows-0", "7", "rows-2"]


def test_two_rows_with_one_id_are_refused_even_when_bad_rows_drop(write: Any) -> None:
    path = write({"q": "a", "id": "x"}, {"q": "b", "id": "x"})
    with pytest.raises(UserError, match=r"rows\.v1\.jsonl:2: id 'x' was used before, at .*rows\.v1\.jsonl:1"):
        read(path, prompt="{q}", on_bad_row="drop")


def test_all_bad_rows_are_reported_in_one_go_with_line_row_and_field(write: Any) -> None:
    path = write({"q": "fine"}, {"x": 1, "id": "r1"}, "{oops", {"q": "  "})
    with pytest.raises(UserError) as caught:
        read(path, prompt="{q}")
    problems = [str(problem) for problem in caught.value.problems]
    assert len(problems) == 4
    assert f"{path}:2: row 'r1': there is no field 'q'; the row has x, id" in problems[0]
    assert f"{path}:3: not JSON" in problems[1]
    assert f"{path}:4: row 'rows-3': the prompt is empty" in problems[2]
    assert "3 problems in 4 rows" in problems[3]
    assert "on_bad_row: drop" in problems[3]


def test_beyond_the_first_problems_the_rest_is_counted(write: Any) -> None:
    with pytest.raises(UserError) as caught:
        read(write(*[{"id": n} for n in range(50)]), prompt="{q}")
    assert len(caught.value.problems) == 22
    assert "and 30 more problems" in str(caught.value)


def test_dropped_rows_are_listed_by_reason_and_move_no_index(write: Any) -> None:
    path = write({"q": "a", "id": "keep"}, {"id": "bad"}, "{oops", {"q": "c", "id": "last"})
    examples = read(path, prompt="{q}", on_bad_row="drop")
    assert [(p.id, p.index) for p in examples.prompts] == [("keep", 0), ("last", 3)]
    assert examples.dropped == {MALFORMED: ("bad", f"{path}:3")}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"q": "a", "good": "x", "bad": "x"}, "chosen and rejected are equal"),
        ({"q": "a", "good": " ", "bad": "x"}, "the chosen is empty"),
        ({"q": "a", "good": [], "bad": "x"}, "field 'good' must be a list of turns"),
        ({"q": "a", "good": [{"role": "user", "content": "x"}], "bad": "x"}, "hold 0 of the assistant"),
        ({"q": "a", "good": "x", "bad": "y", "id": [1]}, "must be text or a whole number"),
    ],
)
def test_unusable_pairs_are_malformed(write: Any, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        read(write(row), prompt="{q}", chosen="{good}", rejected="{bad}")


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([{"role": "assistant", "content": "x"}], "end with the assistant's"),
        ([{"role": "user"}], "turn 0 of field 'turns'"),
        ("text", "must be a list of turns"),
        ([{"role": "user", "content": ""}], "the prompt is empty"),
    ],
)
def test_unusable_turns_are_malformed(write: Any, turns: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        read(write({"turns": turns}), messages="turns")


def test_an_empty_reference_is_malformed(write: Any) -> None:
    with pytest.raises(UserError, match="the reference is empty"):
        read(write({"q": "a", "answer": ""}), prompt="{q}", reference="{answer}")


def test_long_rows_are_refused_with_their_length(write: Any) -> None:
    path = write({"q": "a b c", "id": "r"})
    with pytest.raises(UserError, match="row 'r': the prompt has 3 tokens; max_prompt_tokens is 2"):
        read(path, Words(), prompt="{q}", max_prompt_tokens=2)


def test_long_rows_drop_by_prompt_and_by_whole_row(write: Any) -> None:
    path = write(
        {"id": "fits", "q": "a b", "good": "x y", "bad": "z"},
        {"id": "prompt", "q": "a b c", "good": "x", "bad": "z"},
        {"id": "answer", "q": "a b", "good": "x", "bad": "x y z"},
    )
    options = {"prompt": "{q}", "chosen": "{good}", "rejected": "{bad}"}
    examples = read(path, Words(), **options, max_prompt_tokens=2, max_tokens=5, on_long_row="drop")
    assert [p.id for p in examples.prompts] == ["fits"]
    assert examples.dropped == {LONG_PROMPT: ("prompt",), LONG_ROW: ("answer",)}


def test_without_a_codec_lengths_are_not_checked(write: Any) -> None:
    assert len(read(write({"q": "a b c"}), prompt="{q}", max_prompt_tokens=1)) == 1


def test_an_empty_result_is_an_error_that_counts_what_was_dropped(write: Any) -> None:
    with pytest.raises(UserError, match=r"no row is left of 2 \(2 malformed\)"):
        read(write({}, {}), prompt="{q}", on_bad_row="drop")
    with pytest.raises(UserError, match="there are no rows in it"):
        read(write(), prompt="{q}")


def test_the_limit_takes_the_first_rows_and_reads_no_further(write: Any) -> None:
    examples = read(write({"q": "a"}, {"q": "b"}, "{oops"), prompt="{q}", limit=2)
    assert len(examples) == 2


def test_the_fingerprint_follows_content_and_templates() -> None:
    path = DATA / "gsm8k_train.jsonl"
    same = [read(path, prompt="{prompt}").fingerprint for _ in range(2)]
    assert same[0] == same[1]
    assert read(path, prompt="{prompt} ").fingerprint != same[0]
    assert read(path, prompt="{prompt}", limit=39).fingerprint != same[0]


def test_an_empty_prompt_template_is_meant_and_gives_whole_texts_to_learn(write: Any) -> None:
    found = read(write({"text": "once upon a time"}), prompt="", completion="{text}")
    assert [(d.prompt.text, d.completion) for d in found.demonstrations] == [("", "once upon a time")]
