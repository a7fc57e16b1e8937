"""The canvas of a denoising loop: rows with undecided responses, and how far each has come."""

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
        end: [B] int64 first column after what is decoded.
        block: [B] int64 block being denoised.
        step: [B] int64 forwards that block has had.
        settled: [B] int64 forwards that block has had without a mask, where committed tokens may be edited.
        forwards: [B] int64 forwards the row has had.
        stopped: [B] bool an end token ended the row early.
        block_length: positions per block.
    """

    tokens: Tensor
    prompt_length: Tensor
    sample: Tensor
    commit_step: Tensor
    logp: Tensor
    origin: Tensor
    end: Tensor
    block: Tensor
    step: Tensor
    settled: Tensor
    forwards: Tensor
    stopped: Tensor
    block_length: int

    @property
    def column(self) -> Tensor:
        """[1,L] int64 columns."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device)[None]

    def valid(self, rows: Tensor) -> Tensor:
        """[R,L] bool prompt and response of ``rows`` [R]."""
        return self.column < self.end[rows, None]

    def in_response(self, rows: Tensor) -> Tensor:
        """[R,L] bool response of ``rows`` [R]."""
        return (self.column >= self.prompt_length[rows, None]) & self.valid(rows)

    def block_start(self, rows: Tensor) -> Tensor:
        """[R] int64 first column of the block that each of ``rows`` [R] is denoising; prompt tokens may stand there."""
        return self.origin[rows] + self.block[rows] * self.block_length

    def in_block(self, rows: Tensor) -> Tensor:
        """[R,L] bool response positions of the block that each of ``rows`` [R] is denoising."""
        start = self.block_start(rows)[:, None]
        inside = (self.column >= start) & (self.column < start + self.block_length)
        return inside & self.in_response(rows)

    def finished(self, rows: Tensor) -> Tensor:
        """[R] bool: all blocks are done, or the row was stopped."""
        last = (self.end[rows] - 1 - self.origin[rows]) // self.block_length
        return self.stopped[rows] | (self.block[rows] > last)


def response_end(prompt_length: int, settings: DecodingSettings, *, from_start: bool) -> int:
    """First column after what is decoded for a prompt: the new tokens, or whole blocks that hold them.

    Args:
        prompt_length: tokens of the prompt.
        settings: the protocol.
        from_start: blocks are counted from column 0, not from the response.
    """
    if not settings.whole_blocks:
        return prompt_length + settings.new_tokens
    before = 0 if from_start else prompt_length
    blocks = -(-(prompt_length - before + settings.new_tokens) // settings.block_length)
    return before + blocks * settings.block_length


def aligned_new_tokens(prompt_length: int, new_tokens: int, block_length: int) -> int:
    """The most new tokens, ``new_tokens`` at most, that end with a whole block where blocks count from column 0.

    It is what to ask of a decoder that reports replies block by block; 0 where no block ends in reach.
    """
    return max(0, (prompt_length + new_tokens) // block_length * block_length - prompt_length)


def blank_canvas(
    prompts: Sequence[Tensor | Sequence[int]],
    sample_ids: Sequence[int] | Tensor,
    facts: ModelFacts,
    settings: DecodingSettings,
    layout: AttentionLayout,
    device: torch.device,
) -> Canvas:
    """Rows with undecided responses: masked, or without a mask token filled with padding until a block begins.

    Raises:
        ValueError: prompts and sample ids differ in number.
    """
    undecided = facts.pad_id if facts.mask_id is None else facts.mask_id
    sample = torch.as_tensor(sample_ids, dtype=torch.int64).to(device)
    if sample.shape != (len(prompts),):
        raise ValueError(f"{len(prompts)} prompts, but sample ids of shape {tuple(sample.shape)}")
    lengths = [len(prompt) for prompt in prompts]
    from_start = layout.kind == "block" and layout.origin == "global"
    ends = [response_end(length, settings, from_start=from_start) for length in lengths]
    tokens = torch.full((len(prompts), max(ends, default=settings.new_tokens)), facts.pad_id, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : lengths[row]] = torch.as_tensor(prompt, dtype=torch.int64)
        tokens[row, lengths[row] : ends[row]] = undecided
    length = torch.tensor(lengths, dtype=torch.int64, device=device)
    tokens = tokens.to(device)
    origin = torch.zeros_like(length) if from_start else length.clone()
    return Canvas(
        tokens=tokens,
        prompt_length=length,
        sample=sample,
        commit_step=torch.full_like(tokens, -1),
        logp=torch.zeros(tokens.shape, dtype=torch.float64, device=device),
        origin=origin,
        end=torch.tensor(ends, dtype=torch.int64, device=device),
        block=(length - origin) // settings.block_length,
        step=torch.zeros_like(length),
        settled=torch.zeros_like(length),
        forwards=torch.zeros_like(length),
        stopped=torch.zeros_like(length, dtype=torch.bool),
        block_length=settings.block_length,
    )
