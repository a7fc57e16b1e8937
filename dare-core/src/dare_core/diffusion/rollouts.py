"""What every backend that decodes here has to do around the loop: encode prompts, and write the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from dare_core.diffusion.canvas import response_end
from dare_core.diffusion.completion import completion_mask
from dare_core.diffusion.denoise import DenoiseResult, decoding_layout
from dare_core.errors import Problem, UserError
from dare_core.interfaces import ModelAdapter, RolloutRequest, TextCodec
from dare_core.types import Edits, ModelFacts, Prompt, Rollout, Snapshots, Trace

Recorded = TypeVar("Recorded", Snapshots, Edits)


@dataclass(frozen=True)
class SampleRows:
    """One row per sample of a request, in the order of prompts, then samples.

    Attributes:
        tokens: per row its prompt's token ids.
        prompts: of each row.
        sample_id: [B] int64.
    """

    tokens: Sequence[Sequence[int]]
    prompts: Sequence[Prompt]
    sample_id: Tensor

    def __getitem__(self, part: slice) -> SampleRows:
        return SampleRows(self.tokens[part], self.prompts[part], self.sample_id[part])


def sample_rows(adapter: ModelAdapter, request: RolloutRequest) -> SampleRows:
    """The rows that a request asks for.

    Raises:
        UserError: see :func:`encode_prompts`.
    """
    encoded = encode_prompts(adapter.text, adapter.facts, request)
    ids = [prompt.index * request.samples + g for prompt in request.prompts for g in range(request.samples)]
    return SampleRows(
        tokens=[tokens for tokens in encoded for _ in range(request.samples)],
        prompts=[prompt for prompt in request.prompts for _ in range(request.samples)],
        sample_id=torch.tensor(ids, dtype=torch.int64),
    )


def encode_prompts(text: TextCodec, facts: ModelFacts, request: RolloutRequest) -> list[list[int]]:
    """Token ids of the request's prompts; needs no weights.

    Raises:
        UserError: prompts without a token, and prompts that do not fit the model with the asked new tokens, each named.
    """
    encoded = [text.encode_prompt(prompt) for prompt in request.prompts]
    settings, layout = request.settings, decoding_layout(facts, request.settings)
    from_start = layout.kind == "block" and layout.origin == "global"
    new = f"{settings.new_tokens} new ones are asked for{', in whole blocks' * settings.whole_blocks}"
    problems = []
    for prompt, ids in zip(request.prompts, encoded, strict=True):
        if not ids:
            problems.append(Problem(f"prompt {prompt.id!r} is empty", hint="give at least one token"))
        elif response_end(len(ids), settings, from_start=from_start) > facts.max_positions:
            message = f"prompt {prompt.id!r} has {len(ids)} tokens, and {new}; the model takes {facts.max_positions}"
            hint = "shorten the prompt, lower new_tokens, or set data.max_prompt_tokens and data.on_long_row: drop"
            problems.append(Problem(message, path="rollout.new_tokens", hint=hint))
    if problems:
        raise UserError(problems)
    return encoded


def rollout_of(
    adapter: ModelAdapter,
    rows: SampleRows,
    result: DenoiseResult,
    policy_version: int,
    *,
    approximate: bool = False,
    agreement: float | None = None,
) -> Rollout:
    """The record of decoded rows, on the CPU.

    Args:
        adapter: gives end tokens and text.
        rows: what was asked for.
        result: what the decoder returned.
        policy_version: recorded.
        approximate: logits came from stale states; their log-probabilities are left out.
        agreement: recorded.
    """
    tokens, response = result.tokens.cpu(), result.response.cpu()
    ends = adapter.facts.eos_ids
    completion = completion_mask(tokens, result.asked.cpu(), ends)
    ended = (completion & torch.isin(tokens, torch.tensor(ends))).any(dim=1).tolist()
    written = [row[kept].tolist() for row, kept in zip(tokens, completion, strict=True)]
    return Rollout(
        tokens=tokens,
        prompt=result.prompt.cpu(),
        response=response,
        completion=completion,
        sample_id=rows.sample_id,
        group=torch.tensor([prompt.index for prompt in rows.prompts], dtype=torch.int64),
        example_id=tuple(prompt.id for prompt in rows.prompts),
        finish=tuple("eos" if end else "length" for end in ended),
        text=tuple(adapter.text.decode(ids[:-1] if end else ids) for ids, end in zip(written, ended, strict=True)),
        policy_version=policy_version,
        forwards=result.forwards.cpu(),
        agreement=agreement,
        logp=result.logp.cpu() if result.replayable and not approximate else None,
        trace=Trace(
            commit_step=result.commit_step.cpu(),
            replayable=result.replayable,
            layout_block_length=result.layout.block_length,
            snapshots=None if result.snapshots is None else _on_cpu(result.snapshots),
            edits=None if result.edits is None else _on_cpu(result.edits),
        ),
    )


def _on_cpu(record: Recorded) -> Recorded:
    tensors = {f.name: getattr(record, f.name) for f in fields(record)}
    return replace(record, **{name: tensor.cpu() for name, tensor in tensors.items() if tensor is not None})


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode while open."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
