"""Logits of the tiny LLaDA checkpoint, through the adapter."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from dare_core.testing.goldens import GoldenCase
from dare_core.types import AttentionLayout
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from tests.goldens.runner import golden


@cache
def adapter(folder: Path) -> LladaAdapter:
    section = LladaSection(path=str(folder))
    return LladaAdapter.load(section, device=torch.device("cpu"), dtype=torch.float32)


@golden("models/llada", "logits", "forward")
def logits(case: GoldenCase) -> None:
    tokens = case.tensors["input_ids"]
    valid = case.tensors.get("attention_mask", torch.ones_like(tokens)).bool()
    with torch.no_grad():
        got = adapter(case.folder.parent / "checkpoint").logits(
            tokens, valid, valid, layout=AttentionLayout(), prompt_length=valid.sum(dim=1)
        )
    full = torch.zeros_like(case.tensors["logits"])
    full[valid] = got
    case.close("logits", full, where=valid[:, :, None])
    if bool(valid.all()):
        # The same operations in the same order as the published code: no rounding difference either.
        assert torch.equal(full, case.tensors["logits"])
