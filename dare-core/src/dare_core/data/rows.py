"""Demonstrations and pairs -> token rows in canonical form: prompt from column 0, answer, padding on the right.

Nothing is cut to fit: a row over a limit is refused, so that no end token is lost and no prompt mislabelled as answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.diffusion.completion import completion_mask
from dare_core.errors import Problem, UserError
from dare_core.interfaces.model import TextCodec
from dare_core.types import Demonstration, ModelFacts, Pair, PairRows, Prompt, Rows


@dataclass(frozen=True, slots=True)
class _Line:
    example_id: str
    prompt: list[int]
    answer: list[int]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)


def demonstration_rows(
    demonstrations: Sequence[Demonstration],
    codec: TextCodec,
    facts: ModelFacts,
    *,
    supervise_padding: bool = False,
    max_tokens: int | None = None,
    sample_ids: Sequence[int] | None = None,
) -> Rows:
    """Rows of one optimizer step's batch.

    Args:
        demonstrations: B prompts with their answers.
        codec: tokenises both; its answers end with the family's end token.
        facts: end and padding ids, longest row.
        supervise_padding: fill every answer with end tokens to the longest row of the batch and make the filling
            part of ``response``; ``completion`` still ends with the first end token.
        max_tokens: longest prompt + answer allowed, beside the model's own limit.
        sample_ids: [B] unique ids that address draws; by default the prompts' indices.

    Raises:
        UserError: a row is over a limit, or supervised padding has no end token to fill with.
    """
    lines = [_line(d.prompt, d.completion, codec, d.prompt.id) for d in demonstrations]
    indices = [d.prompt.index for d in demonstrations]
    return Rows(
        **_columns(lines, facts, supervise_padding, max_tokens),
        sample_id=_ids(indices if sample_ids is None else sample_ids),
        group=_ids(indices),
        example_id=tuple(line.example_id for line in lines),
    )


def pair_rows(
    pairs: Sequence[Pair],
    codec: TextCodec,
    facts: ModelFacts,
    *,
    supervise_padding: bool = False,
    max_tokens: int | None = None,
    sample_ids: Sequence[int] | None = None,
) -> PairRows:
    """Rows of preference pairs: 2 per pair, the chosen answer first; ``group`` is the pair's prompt index.

    Args:
        pairs: P prompts with two answers.
        codec: see :func:`demonstration_rows`, also for the arguments below.
        facts: end and padding ids, longest row.
        supervise_padding: fill both answers with end tokens to the longest row of the batch.
        max_tokens: longest prompt + answer allowed.
        sample_ids: [2P] unique ids, chosen and rejected in turn; by default 2 * index and 2 * index + 1.

    Raises:
        UserError: a row is over a limit, or supervised padding has no end token to fill with.
    """
    lines = [_line(p.prompt, text, codec, p.prompt.id) for p in pairs for text in (p.chosen, p.rejected)]
    indices = [p.prompt.index for p in pairs]
    return PairRows(
        **_columns(lines, facts, supervise_padding, max_tokens),
        sample_id=_ids([2 * i + side for i in indices for side in (0, 1)] if sample_ids is None else sample_ids),
        group=_ids([i for i in indices for _ in (0, 1)]),
        example_id=tuple(line.example_id for line in lines),
        preferred=torch.tensor([True, False] * len(pairs), dtype=torch.bool),
    )


def _line(prompt: Prompt, answer: str, codec: TextCodec, example_id: str) -> _Line:
    return _Line(example_id, codec.encode_prompt(prompt), codec.encode_completion(answer))


def _columns(
    lines: Sequence[_Line], facts: ModelFacts, supervise_padding: bool, max_tokens: int | None
) -> dict[str, Tensor]:
    if not lines:
        raise ValueError("a batch holds at least one row")
    _refuse_long(lines, facts, max_tokens)
    width = max(line.length for line in lines)
    if supervise_padding and not facts.eos_ids and any(line.length < width for line in lines):
        raise UserError(Problem("supervise_padding needs an end token, and the model names none", path="model.eos_ids"))
    fill = facts.eos_ids[0] if supervise_padding and facts.eos_ids else facts.pad_id
    tokens = torch.full((len(lines), width), fill, dtype=torch.int64)
    prompt = torch.zeros((len(lines), width), dtype=torch.bool)
    response = torch.zeros_like(prompt)
    for row, line in enumerate(lines):
        tokens[row, : line.length] = torch.tensor([*line.prompt, *line.answer], dtype=torch.int64)
        prompt[row, : len(line.prompt)] = True
        response[row, len(line.prompt) : width if supervise_padding else line.length] = True
    completion = completion_mask(tokens, response, facts.eos_ids)
    return {"tokens": tokens, "prompt": prompt, "response": response, "completion": completion}


def _refuse_long(lines: Sequence[_Line], facts: ModelFacts, max_tokens: int | None) -> None:
    limits = [(facts.max_positions, "the model's longest row")]
    if max_tokens is not None:
        limits.append((max_tokens, "max_tokens"))
    limit, name = min(limits)
    problems = [
        Problem(
            f"prompt and answer have {line.length} tokens; {name} is {limit}",
            where=f"row '{line.example_id}'",
            hint="rows are never cut; leave long ones out with 'max_tokens' and 'on_long_row: drop' of the data",
        )
        for line in lines
        if line.length > limit
    ]
    if problems:
        raise UserError(problems)


def _ids(values: Sequence[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)
