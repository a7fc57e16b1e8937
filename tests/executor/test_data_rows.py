"""Demonstrations and pairs as token rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dare_core.data.rows import demonstration_rows, pair_rows
from dare_core.errors import UserError
from dare_core.interfaces import TextCodec
from dare_core.types import Demonstration, Message, ModelFacts, Pair, Prompt

EOS, PAD, MASK = 30, 31, 29
FACTS = ModelFacts(
    kind="letters", diffusion="masked", vocab_size=32, mask_id=MASK, eos_ids=(EOS, 28), pad_id=PAD, max_positions=12
)


class Letters(TextCodec):
    """a = 1, b = 2, ...; answers end with EOS."""

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        return [ord(character) - 96 for character in prompt.text or ""]

    def encode_completion(self, text: str) -> list[int]:
        return [*(ord(character) - 96 for character in text), EOS]

    def decode(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError

    def render(self, messages: Sequence[Message]) -> str:
        raise NotImplementedError


def demonstration(prompt: str, completion: str, index: int) -> Demonstration:
    return Demonstration(Prompt(id=f"row-{index}", index=index, text=prompt), completion)


def marks(mask: Tensor) -> list[str]:
    return ["".join("x" if on else "." for on in row) for row in mask.tolist()]


BATCH = [demonstration("ab", "cde", 4), demonstration("a", "b", 9)]


def test_rows_hold_prompt_answer_and_padding_in_this_order() -> None:
    rows = demonstration_rows(BATCH, Letters(), FACTS)
    assert rows.tokens.tolist() == [[1, 2, 3, 4, 5, EOS], [1, 2, EOS, PAD, PAD, PAD]]
    assert marks(rows.prompt) == ["xx....", "x....."]
    assert marks(rows.response) == ["..xxxx", ".xx..."]
    assert torch.equal(rows.completion, rows.response)
    assert rows.sample_id.tolist() == rows.group.tolist() == [4, 9]
    assert rows.example_id == ("row-4", "row-9")


def test_supervised_padding_is_a_tail_of_end_tokens_beyond_the_completion() -> None:
    rows = demonstration_rows(BATCH, Letters(), FACTS, supervise_padding=True)
    assert rows.tokens.tolist() == [[1, 2, 3, 4, 5, EOS], [1, 2, EOS, EOS, EOS, EOS]]
    assert marks(rows.response) == ["..xxxx", ".xxxxx"]
    assert marks(rows.completion) == ["..xxxx", ".xx..."]


@pytest.mark.parametrize(
    ("supervise_padding", "padding_cross_entropy", "loss"),
    [(True, 1.0, 1.0), (True, 3.0, 10 / 6), (False, 1.0, 1.0), (False, 3.0, 1.0)],
)
def test_a_loss_by_supervised_tokens_counts_padding_only_where_it_is_supervised(
    supervise_padding: bool, padding_cross_entropy: float, loss: float
) -> None:
    # 4 answer tokens (the end token is the last) and 2 of padding beside a longer row; answer positions 0 and 2 and
    # padding position 5 are noised at mask probability 1/2, so each weighs 2.
    batch = [demonstration("a", "bcd", 0), demonstration("a", "bcdef", 1)]
    rows = demonstration_rows(batch, Letters(), FACTS, supervise_padding=supervise_padding)
    noised = torch.zeros(7, dtype=torch.bool)
    noised[[1, 3, 6]] = True
    cross_entropy = torch.where(rows.completion[0], 1.0, padding_cross_entropy)
    scored = noised & rows.response[0]
    assert ((2.0 * cross_entropy * scored).sum() / rows.response[0].sum()).item() == pytest.approx(loss)


def test_an_answer_ends_at_its_first_end_token_whichever_it_is() -> None:
    rows = demonstration_rows([demonstration("a", "b|c", 0)], Letters(), FACTS)
    assert rows.tokens.tolist() == [[1, 2, 28, 3, EOS]]
    assert marks(rows.response) == [".xxxx"]
    assert marks(rows.completion) == [".xx.."]


def test_a_row_is_the_same_in_any_batch_up_to_its_padding() -> None:
    together = demonstration_rows(BATCH, Letters(), FACTS)
    alone = demonstration_rows(BATCH[1:], Letters(), FACTS)
    assert torch.equal(together.tokens[1:, :3], alone.tokens)
    assert torch.equal(together.response[1:, :3], alone.response)


@pytest.mark.parametrize(("limit", "name"), [(5, "max_tokens is 5"), (None, "the model's longest row is 12")])
def test_rows_over_a_limit_are_refused_by_name_and_never_cut(limit: int | None, name: str) -> None:
    long = [demonstration("a", "b", 1), demonstration("abcdefg", "hijkl", 2)]
    with pytest.raises(UserError) as caught:
        demonstration_rows(long, Letters(), FACTS, max_tokens=limit)
    assert [problem.where for problem in caught.value.problems] == ["row 'row-2'"]
    assert f"have 13 tokens; {name}" in str(caught.value)


def test_supervised_padding_without_an_end_token_is_refused() -> None:
    facts = ModelFacts(
        kind="letters", diffusion="masked", vocab_size=32, mask_id=MASK, eos_ids=(), pad_id=PAD, max_positions=12
    )
    with pytest.raises(UserError, match="supervise_padding needs an end token"):
        demonstration_rows(BATCH, Letters(), facts, supervise_padding=True)


def test_pairs_are_two_rows_of_one_group_with_the_chosen_first() -> None:
    pairs = [
        Pair(Prompt(id="p", index=3, text="ab"), "c", "de"),
        Pair(Prompt(id="q", index=1, text="a"), "bcd", "e"),
    ]
    rows = pair_rows(pairs, Letters(), FACTS)
    assert rows.tokens.tolist() == [
        [1, 2, 3, EOS, PAD],
        [1, 2, 4, 5, EOS],
        [1, 2, 3, 4, EOS],
        [1, 5, EOS, PAD, PAD],
    ]
    assert rows.group.tolist() == [3, 3, 1, 1]
    assert rows.preferred.tolist() == [True, False, True, False]
    assert rows.sample_id.tolist() == [6, 7, 2, 3]
    assert rows.example_id == ("p", "p", "q", "q")


def test_given_sample_ids_replace_the_defaults() -> None:
    assert demonstration_rows(BATCH, Letters(), FACTS, sample_ids=[70, 71]).sample_id.tolist() == [70, 71]
