"""The native backend: the reference decoder on the live model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from dare_core.diffusion.canvas import response_end
from dare_core.diffusion.completion import completion_mask
from dare_core.diffusion.denoise import DenoiseResult, decoding_layout, denoise
from dare_core.errors import Problem, UserError
from dare_core.interfaces import ModelAdapter, RolloutBackend, RolloutRequest
from dare_core.rollout.config import NativeSection
from dare_core.types import Edits, Prompt, Rollout, Snapshots, Trace

Recorded = TypeVar("Recorded", Snapshots, Edits)


class NativeBackend(RolloutBackend):
    """Generates with the live adapter, attached LoRA included, in evaluation mode and without gradient.

    The rollout is returned on the CPU. Its log-probabilities are those of the distribution the tokens were
    chosen from at temperature 1: they equal the policy's unless guidance or suppression is on. Where tokens may be
    edited after their commit there are none, and the trace does not replay.
    """

    exactness = "exact"
    config: NativeSection

    def __init__(self, config: NativeSection, adapter: ModelAdapter) -> None:
        super().__init__(config, adapter)

    def generate(self, request: RolloutRequest) -> Rollout:
        """See the interface."""
        encoded = encode_prompts(self.adapter, request)
        repeated = [ids for ids in encoded for _ in range(request.samples)]
        prompts = [prompt for prompt in request.prompts for _ in range(request.samples)]
        ids = [prompt.index * request.samples + g for prompt in request.prompts for g in range(request.samples)]
        sample = torch.tensor(ids, dtype=torch.int64)
        with _evaluating(self.adapter.module):
            result = denoise(
                self.adapter,
                repeated,
                request.settings,
                request.address,
                sample,
                sampler=self.config.sampler,
                ties=self.config.ties,
                snapshots=request.snapshots,
                rows_per_batch=self.config.rows_per_batch,
                cache=self.config.cache == "auto",
            )
        return rollout_of(self.adapter, prompts, sample, result, request.policy_version)


def encode_prompts(adapter: ModelAdapter, request: RolloutRequest) -> list[list[int]]:
    """Token ids of the request's prompts.

    Raises:
        UserError: prompts that do not fit the model with the asked new tokens, each named.
    """
    limit = adapter.facts.max_positions
    encoded = [adapter.text.encode_prompt(prompt) for prompt in request.prompts]
    settings, layout = request.settings, decoding_layout(adapter.facts, request.settings)
    from_start = layout.kind == "block" and layout.origin == "global"
    new = f"{settings.new_tokens} new ones are asked for{', in whole blocks' * settings.whole_blocks}"
    problems = [
        Problem(
            f"prompt {prompt.id!r} has {len(ids)} tokens, and {new}; the model takes {limit}",
            path="rollout.new_tokens",
            hint="shorten the prompt, lower new_tokens, or set data.max_prompt_tokens and data.on_long_row: drop",
        )
        for prompt, ids in zip(request.prompts, encoded, strict=True)
        if response_end(len(ids), settings, from_start=from_start) > limit
    ]
    if problems:
        raise UserError(problems)
    return encoded


def rollout_of(
    adapter: ModelAdapter, prompts: Sequence[Prompt], sample: Tensor, result: DenoiseResult, policy_version: int
) -> Rollout:
    """The record of decoded rows, on the CPU.

    Args:
        adapter: gives end tokens and text.
        prompts: of each row.
        sample: [B] int64 sample ids.
        result: what the decoder returned.
        policy_version: recorded.
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
        sample_id=sample,
        group=torch.tensor([prompt.index for prompt in prompts], dtype=torch.int64),
        example_id=tuple(prompt.id for prompt in prompts),
        finish=tuple("eos" if end else "length" for end in ended),
        text=tuple(adapter.text.decode(ids[:-1] if end else ids) for ids, end in zip(written, ended, strict=True)),
        policy_version=policy_version,
        forwards=result.forwards.cpu(),
        logp=None if result.edits is not None else result.logp.cpu(),
        trace=Trace(
            commit_step=result.commit_step.cpu(),
            replayable=result.edits is None,
            layout_block_length=result.layout.block_length,
            snapshots=None if result.snapshots is None else _on_cpu(result.snapshots),
            edits=None if result.edits is None else _on_cpu(result.edits),
        ),
    )


def _on_cpu(record: Recorded) -> Recorded:
    tensors = {f.name: getattr(record, f.name) for f in fields(record)}
    return replace(record, **{name: tensor.cpu() for name, tensor in tensors.items() if tensor is not None})


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
