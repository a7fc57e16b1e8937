"""The canvas of a denoising loop: rows with masked responses, and how far each has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.types import AttentionLayout, DecodingSettings, ModelFacts


@dataclass
class Canvas:
    """State of B rows; prompt from column 0, then the response, then padding.

    A row's blocks are counted from ``origin`` and decoded left to right; the first and the last one may be short.

    Attributes:
        tokens: [B,L] int64.
        prompt_length: [B] int64.
        sample: [B] int64 sample ids.
        commit_step: [B,L] int64, -1 = not committed.
        logp: [B,L] float64 log-probability at commit.
        origin: [B] int64 column where blocks are counted from.
        block: [B] int64 block being denoised.
        step: [B] int64 forwards that block has had.
        forwards: [B] int64 forwards the row has had.
        stopped: [B] bool an end token ended the row early.
        new_tokens: response positions of every row.
        block_length: positions per block.
    """

    tokens: Tensor
    prompt_length: Tensor
    sample: Tensor
    commit_step: Tensor
    logp: Tensor
    origin: Tensor
    block: Tensor
    step: Tensor
    forwards: Tensor
    stopped: Tensor
    new_tokens: int
    block_length: int

    @property
    def column(self) -> Tensor:
        """[1,L] int64 columns."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device)[None]

    @property
    def end(self) -> Tensor:
        """[B] int64 first column after the response."""
        return self.prompt_length + self.new_tokens

    def valid(self, rows: Tensor) -> Tensor:
        """[R,L] bool prompt and response of ``rows`` [R]."""
        return self.column < self.end[rows, None]

    def in_response(self, rows: Tensor) -> Tensor:
        """[R,L] bool response of ``rows`` [R]."""
        return (self.column >= self.prompt_length[rows, None]) & self.valid(rows)

    def in_block(self, rows: Tensor) -> Tensor:
        """[R,L] bool response positions of the block that each of ``rows`` [R] is denoising."""
        start = (self.origin[rows] + self.block[rows] * self.block_length)[:, None]
        inside = (self.column >= start) & (self.column < start + self.block_length)
        return inside & self.in_response(rows)

    def finished(self, rows: Tensor) -> Tensor:
        """[R] bool: all blocks are done, or the row was stopped."""
        last = (self.end[rows] - 1 - self.origin[rows]) // self.block_length
        return self.stopped[rows] | (self.block[rows] > last)


def masked_canvas(
    prompts: Sequence[Tensor | Sequence[int]],
    sample_ids: Sequence[int] | Tensor,
    facts: ModelFacts,
    settings: DecodingSettings,
    layout: AttentionLayout,
    device: torch.device,
) -> Canvas:
    """Rows with fully masked responses.

    Raises:
        ValueError: the model has no mask token, or prompts and sample ids differ in number.
    """
    if facts.mask_id is None:
        raise ValueError(f"{facts.kind} has no mask token; its canvas is not a masked one")
    sample = torch.as_tensor(sample_ids, dtype=torch.int64).to(device)
    if sample.shape != (len(prompts),):
        raise ValueError(f"{len(prompts)} prompts, but sample ids of shape {tuple(sample.shape)}")
    lengths = [len(prompt) for prompt in prompts]
    width = max(lengths, default=0) + settings.new_tokens
    tokens = torch.full((len(prompts), width), facts.pad_id, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : lengths[row]] = torch.as_tensor(prompt, dtype=torch.int64)
        tokens[row, lengths[row] : lengths[row] + settings.new_tokens] = facts.mask_id
    length = torch.tensor(lengths, dtype=torch.int64, device=device)
    tokens = tokens.to(device)
    from_start = layout.kind == "block" and layout.origin == "global"
    origin = torch.zeros_like(length) if from_start else length.clone()
    return Canvas(
        tokens=tokens,
        prompt_length=length,
        sample=sample,
        commit_step=torch.full_like(tokens, -1),
        logp=torch.zeros(tokens.shape, dtype=torch.float64, device=device),
        origin=origin,
        block=(length - origin) // settings.block_length,
        step=torch.zeros_like(length),
        forwards=torch.zeros_like(length),
        stopped=torch.zeros_like(length, dtype=torch.bool),
        new_tokens=settings.new_tokens,
        block_length=settings.block_length,
    )
