"""Short ways to decode toys and to write rows by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dare_core.diffusion.denoise import DenoiseResult, denoise
from dare_core.interfaces import ModelAdapter
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import Address, DecodingSettings, Rows, SelectionRule

ADDRESS = Address(seed=5, purpose="rollout", step=2)


def settings(new_tokens: int, block: int | None = None, steps: int | None = None, **more: Any) -> DecodingSettings:
    block = block or new_tokens
    rule = more.pop("selection", "low-confidence")
    chosen = rule if isinstance(rule, SelectionRule) else SelectionRule(rule)
    return DecodingSettings(
        new_tokens=new_tokens, block_length=block, steps_per_block=steps or block, selection=chosen, **more
    )


def decode(
    toy: ModelAdapter,
    prompts: Sequence[Sequence[int]],
    protocol: DecodingSettings,
    sample_ids: Sequence[int] | None = None,
    **more: Any,
) -> DenoiseResult:
    ids = range(len(prompts)) if sample_ids is None else sample_ids
    return denoise(toy, prompts, protocol, more.pop("address", ADDRESS), ids, **more)


def single_row(tokens: Sequence[int], prompt: int, padding: int = 0, pad_id: int = 0) -> Rows:
    """One row with ``prompt`` prompt tokens and padding on the right."""
    ids = torch.tensor([[*tokens, *[pad_id] * padding]])
    column = torch.arange(ids.shape[1])[None]
    response = (column >= prompt) & (column < len(tokens))
    return Rows(
        tokens=ids,
        prompt=column < prompt,
        response=response,
        completion=response,
        sample_id=torch.zeros(1, dtype=torch.int64),
        group=torch.zeros(1, dtype=torch.int64),
        example_id=("row",),
    )


def scripted(rows: Sequence[Sequence[float]]) -> ToyMasked:
    """A toy whose logits at each position [V-1] are as given, whatever the context."""
    bias = torch.tensor(rows, dtype=torch.float64)
    positions, outputs = bias.shape
    return ToyMasked.from_tables(bias, torch.zeros(positions, positions, outputs, outputs + 1, dtype=torch.float64))


def responses(result: DenoiseResult) -> list[list[int]]:
    return [row[kept].tolist() for row, kept in zip(result.tokens, result.response, strict=True)]


def unpadded(result: DenoiseResult, values: Tensor) -> list[list[float]]:
    kept = result.prompt | result.response
    return [row[here].tolist() for row, here in zip(values, kept, strict=True)]
