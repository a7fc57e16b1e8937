"""Examples as tokens: given pieces and pieces to learn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dare_core.interfaces.model import TextCodec
from dare_core.types.examples import Demonstration, Message, Pair, Prompt


@dataclass(frozen=True, slots=True)
class Line:
    """One row before it is laid out beside others.

    Attributes:
        example_id: of the data row.
        tokens: prompt, answer, and so on.
        learnt: per token, whether it belongs to an answer to learn.
    """

    example_id: str
    tokens: list[int]
    learnt: list[bool]

    @classmethod
    def of(cls, example_id: str, pieces: list[tuple[list[int], bool]]) -> Line:
        """A row from (ids, learnt) pieces."""
        return cls(
            example_id,
            [token for ids, _ in pieces for token in ids],
            [learnt for ids, learnt in pieces for _ in ids],
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def spans(self) -> int:
        """Answers to learn that something stands between."""
        return sum(now and not before for before, now in zip([False, *self.learnt], self.learnt, strict=False))


def demonstration_line(example: Demonstration, codec: TextCodec) -> Line:
    """The row of a demonstration, with a mark on each token to learn."""
    prompt = example.prompt
    if example.earlier:
        turns = (*prompt.messages, Message("assistant", example.completion))
        answers = (*example.earlier, len(prompt.messages))
        return Line.of(prompt.id, codec.encode_conversation(replace(prompt, messages=turns), answers))
    return answer_line(prompt, example.completion, codec)


def answer_line(prompt: Prompt, answer: str, codec: TextCodec) -> Line:
    """The row of a prompt and one answer."""
    return Line.of(prompt.id, [(codec.encode_prompt(prompt), False), (codec.encode_completion(answer), True)])


def example_tokens(example: Prompt | Demonstration | Pair, codec: TextCodec) -> list[list[int]]:
    """Tokens of an example's rows, prompt and answer: one row, of a pair the chosen and the rejected one."""
    match example:
        case Demonstration():
            return [demonstration_line(example, codec).tokens]
        case Pair():
            prompt = codec.encode_prompt(example.prompt)
            return [[*prompt, *codec.encode_completion(text)] for text in (example.chosen, example.rejected)]
        case _:
            return [codec.encode_prompt(example)]


def example_length(example: Prompt | Demonstration | Pair, codec: TextCodec) -> int:
    """Tokens of an example's row, prompt and answer; of a pair's longer one."""
    return max(map(len, example_tokens(example, codec)))
