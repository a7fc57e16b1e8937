"""Logits of the tiny Dream checkpoint, through the adapter."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from dare_core.diffusion.layouts import positions
from dare_core.testing.goldens import GoldenCase
from dare_core.types import AttentionLayout
from dare_dream.adapter import DreamAdapter
from dare_dream.config import DreamSection
from tests.goldens.runner import golden


@cache
def adapter(folder: Path) -> DreamAdapter:
    section = DreamSection(path=str(folder))
    return DreamAdapter.load(section, device=torch.device("cpu"), dtype=torch.float32)


@golden("models/dream", "logits", "forward")
def logits(case: GoldenCase) -> None:
    """The product gives aligned logits only: row by row they are the raw ones moved on by one real token."""
    tokens = case.tensors["input_ids"]
    valid = case.tensors.get("attention_mask", torch.ones_like(tokens)).bool()
    with torch.no_grad():
        got = adapter(case.folder.parent / "checkpoint").logits(
            tokens, valid, valid, layout=AttentionLayout(), prompt_length=valid.sum(dim=1)
        )
    aligned = torch.zeros_like(case.tensors["logits"])
    aligned[valid] = got
    if "logits_shifted" in case.tensors:
        case.close("logits_shifted", aligned)
    raw, known = torch.zeros_like(aligned), torch.zeros_like(valid)
    for row in range(len(tokens)):
        columns = valid[row].nonzero()[:, 0]
        raw[row, columns[:-1]] = aligned[row, columns[1:]]
        known[row, columns[:-1]] = True
    case.close("logits", raw, where=known[:, :, None])
    if "position_ids" in case.tensors:
        case.close("position_ids", positions(valid), where=valid)
