"""Logits of the tiny LLaDA-MoE checkpoint through the adapter, and its family defaults."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch

from dare_core.testing.goldens import GoldenCase
from dare_core.types import AttentionLayout
from dare_llada.moe.adapter import LladaMoeAdapter
from dare_llada.moe.config import LladaMoeSection
from dare_llada.plugin import dare_detect_model
from tests.goldens.runner import golden


@cache
def adapter(folder: Path) -> LladaMoeAdapter:
    section = LladaMoeSection(path=str(folder))
    return LladaMoeAdapter.load(section, device=torch.device("cpu"), dtype=torch.float32)


@golden("models/llada_moe", "logits", "forward")
def logits(case: GoldenCase) -> None:
    model, tokens = adapter(case.folder.parent / "checkpoint"), case.tensors["input_ids"]
    valid = case.tensors.get("attention_mask", torch.ones_like(tokens)).bool()
    states: dict[str, torch.Tensor] = {}
    backbone = model.module.model
    hooks = [
        part.register_forward_hook(lambda _module, _inputs, output, name=name: states.__setitem__(name, output))
        for name, part in {"hidden_0": backbone.embed_tokens, "hidden_last": backbone.norm}.items()
    ]
    with torch.no_grad():
        got = model.logits(tokens, valid, valid, layout=AttentionLayout(), prompt_length=valid.sum(dim=1))
    for hook in hooks:
        hook.remove()
    full = torch.zeros_like(case.tensors["logits"])
    full[valid] = got
    case.close("logits", full, where=valid[:, :, None])
    for name in states.keys() & case.tensors.keys():
        case.close(name, states[name].view(*tokens.shape, -1))


@golden("models/llada_moe", "config")
def defaults(case: GoldenCase) -> None:
    entry = case.spec["config"]
    published = json.loads((case.folder / entry["file"]).read_text(encoding="utf-8"))
    facts = LladaMoeSection(path="anywhere").facts(published)
    got = {
        "family": (dare_detect_model(published) or "").replace("-", "_"),
        "mask_id": facts.mask_id,
        "eos_id": facts.eos_ids[0],
        "pad_id": facts.pad_id,
        "stop_ids": list(facts.eos_ids),
    }
    assert {name: got[name] for name in entry["expected"]} == entry["expected"]
