"""Demonstrations and pairs -> token rows in canonical form: prompt from column 0, answer, padding on the right.

Conversations of which several answers are learnt have further given turns and answers before the padding. Nothing is
cut to fit: a row over a limit is refused, so that no end token is lost and no prompt mislabelled as answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dare_core.data.tokens import Line, answer_line, demonstration_line
from dare_core.diffusion.completion import completion_mask
from dare_core.diffusion.seeds import uniforms
from dare_core.errors import Problem, UserError
from dare_core.interfaces.model import TextCodec
from dare_core.types import Address, Demonstration, ModelFacts, Pair, PairRows, Rows


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
    lines = [demonstration_line(d, codec) for d in demonstrations]
    _refuse_blocks_of_turns(lines, facts)
    indices = [d.prompt.index for d in demonstrations]
    return Rows(
        **_columns(lines, facts, supervise_padding, max_tokens),
        sample_id=_ids(indices if sample_ids is None else sample_ids),
        group=_ids(indices),
        example_id=tuple(line.example_id for line in lines),
    )


def one_turn_each(examples: Sequence[Demonstration], address: Address) -> list[Demonstration]:
    """Of each conversation one answer to learn, uniform over them, with what precedes it; later turns leave the row."""
    drawn = uniforms(address, torch.tensor([one.prompt.index for one in examples], dtype=torch.int64), 0, 1)[:, 0]
    taken = []
    for example, share in zip(examples, drawn.tolist(), strict=True):
        answers = (*example.earlier, len(example.prompt.messages))
        taken.append(example.up_to(answers[min(int(share * len(answers)), len(answers) - 1)]))
    return taken


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
    lines = [answer_line(p.prompt, text, codec) for p in pairs for text in (p.chosen, p.rejected)]
    indices = [p.prompt.index for p in pairs]
    return PairRows(
        **_columns(lines, facts, supervise_padding, max_tokens),
        sample_id=_ids([2 * i + side for i in indices for side in (0, 1)] if sample_ids is None else sample_ids),
        group=_ids([i for i in indices for _ in (0, 1)]),
        example_id=tuple(line.example_id for line in lines),
        preferred=torch.tensor([True, False] * len(pairs), dtype=torch.bool),
    )


def _columns(
    lines: Sequence[Line], facts: ModelFacts, supervise_padding: bool, max_tokens: int | None
) -> dict[str, Tensor]:
    if not lines:
        raise ValueError("a batch holds at least one row")
    _refuse_long(lines, facts, max_tokens)
    width = max(len(line) for line in lines)
    if supervise_padding and not facts.eos_ids and any(len(line) < width for line in lines):
        raise UserError(Problem("supervise_padding needs an end token, and the model names none", path="model.eos_ids"))
    fill = facts.eos_ids[0] if supervise_padding and facts.eos_ids else facts.pad_id
    tokens = torch.full((len(lines), width), fill, dtype=torch.int64)
    prompt = torch.zeros((len(lines), width), dtype=torch.bool)
    response = torch.zeros_like(prompt)
    for row, line in enumerate(lines):
        learnt = torch.tensor(line.learnt, dtype=torch.bool)
        tokens[row, : len(line)] = torch.tensor(line.tokens, dtype=torch.int64)
        prompt[row, : len(line)] = ~learnt
        response[row, : len(line)] = learnt
        response[row, len(line) :] = supervise_padding
    if facts.first_token_given:
        prompt[:, 0], response[:, 0] = prompt[:, 0] | response[:, 0], False
    completion = completion_mask(tokens, response, facts.eos_ids)
    return {"tokens": tokens, "prompt": prompt, "response": response, "completion": completion}


def _refuse_long(lines: Sequence[Line], facts: ModelFacts, max_tokens: int | None) -> None:
    limits = [(facts.max_positions, "the model's longest row")]
    if max_tokens is not None:
        limits.append((max_tokens, "max_tokens"))
    limit, name = min(limits)
    problems = [
        Problem(
            f"prompt and answer have {len(line)} tokens; {name} is {limit}",
            where=f"row '{line.example_id}'",
            hint="rows are never cut; leave long ones out with 'max_tokens' and 'on_long_row: drop' of the data",
        )
        for line in lines
        if len(line) > limit
    ]
    if problems:
        raise UserError(problems)


def _refuse_blocks_of_turns(lines: Sequence[Line], facts: ModelFacts) -> None:
    """Blocks that start anew at a response do so once in a row, and at each answer of a conversation in decoding."""
    layout = facts.layout
    problems = [
        Problem(
            f"{line.spans} answers of one conversation are learnt, but blocks are counted from '{layout.origin}'",
            path="data.trained_turns",
            where=f"row '{line.example_id}'",
            hint="use 'last' or 'one', or a model whose blocks are counted from the row's first token",
        )
        for line in lines
        if line.spans > 1 and layout.kind == "block" and layout.origin != "global"
    ]
    if problems:
        raise UserError(problems[:1])


def _ids(values: Sequence[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)
