"""Logits and routing of the tiny LLaDA2 checkpoint through the adapter, and its family defaults."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from dare_core.backbones.attention import segment_plan
from dare_core.diffusion.layouts import block_index, positions, visible
from dare_core.testing.goldens import GoldenCase
from dare_core.types import AttentionLayout, Views
from dare_llada2.adapter import Llada2Adapter
from dare_llada2.config import Llada2Section
from dare_llada2.plugin import dare_detect_model
from tests.goldens.runner import golden


@cache
def adapter(folder: Path, mask: int, eos: int, block_length: int) -> Llada2Adapter:
    section = Llada2Section(path=str(folder), mask_id=mask, eos_ids=(eos,), block_length=block_length)
    return Llada2Adapter.load(section, device=torch.device("cpu"), dtype=torch.float32)


def adapter_of(case: GoldenCase) -> Llada2Adapter:
    settings = case.settings
    folder = case.folder.parent / "checkpoint"
    return adapter(folder, settings["mask_id"], settings["eos_id"], settings["block_length"])


def logits_of(model: Llada2Adapter, tokens: torch.Tensor, valid: torch.Tensor, layout: AttentionLayout) -> torch.Tensor:
    with torch.no_grad():
        got = model.logits(
            tokens, valid, valid, layout=layout, prompt_length=torch.zeros(len(tokens), dtype=torch.int64)
        )
    full = torch.zeros(*tokens.shape, got.shape[1])
    full[valid] = got
    return full


@contextmanager
def recorded(parts: dict[str, torch.nn.Module]):
    """What modules returned in the forwards meanwhile, by name."""
    seen: dict[str, object] = {}
    hooks = [
        part.register_forward_hook(lambda _module, _inputs, output, name=name: seen.__setitem__(name, output))
        for name, part in parts.items()
    ]
    yield seen
    for hook in hooks:
        hook.remove()


@golden("models/llada2", "logits", "forward: forward with an all-visible")
def unpadded(case: GoldenCase) -> None:
    model, tokens = adapter_of(case), case.tensors["input_ids"]
    valid = torch.ones_like(tokens, dtype=torch.bool)
    backbone = model.module.model
    routers = [layer.mlp.gate for layer in backbone.layers if hasattr(layer.mlp, "gate")]
    parts = {"hidden_0": backbone.embed_tokens, "hidden_last": backbone.norm}
    parts |= {f"router_{i}": router for i, router in enumerate(routers)}
    with recorded(parts) as seen:
        case.close("logits_block_causal", logits_of(model, tokens, valid, model.facts.layout))
    shape = tokens.shape
    for name in ("hidden_0", "hidden_last"):
        case.close(name, seen[name].view(*shape, -1))
    for i in range(len(routers)):
        scores, _, chosen = seen[f"router_{i}"]
        case.close(f"router_logits_{i}", scores.view(*shape, -1))
        assert torch.equal(
            chosen.view(*shape, -1).sort(dim=-1).values, case.tensors[f"router_topk_{i}"].sort(dim=-1).values
        )
    blocks = block_index(valid, torch.zeros(len(tokens), dtype=torch.int64), model.facts.layout)
    case.close("attention_mask_block_causal", visible(blocks)[0])
    case.close("logits_full", logits_of(model, tokens, valid, AttentionLayout("block", tokens.shape[1])))


@golden("models/llada2", "logits", "forward: left-padded")
@golden("models/llada2", "logits", "forward: right-padded")
def padded(case: GoldenCase) -> None:
    model, tokens, valid = adapter_of(case), case.tensors["input_ids"], case.tensors["attention_mask"].bool()
    case.close("logits", logits_of(model, tokens, valid, model.facts.layout), where=valid[:, :, None])
    case.close("position_ids", positions(valid), where=valid)
    seen = visible(block_index(valid, torch.zeros(len(tokens), dtype=torch.int64), model.facts.layout))
    case.close("attention_mask_3d", seen, where=valid[:, :, None])


@golden("models/llada2", "logits", "forward: training layout")
def two_copies(case: GoldenCase) -> None:
    model, noisy, clean = adapter_of(case), case.tensors["noisy"], case.tensors["clean"]
    count, length = noisy.shape
    valid = torch.ones_like(noisy, dtype=torch.bool)
    blocks = block_index(valid, torch.zeros(count, dtype=torch.int64), model.facts.layout)
    copies = torch.arange(2 * length) < length
    plan = segment_plan([2 * length], torch.device("cpu"), block=torch.cat([blocks[0], blocks[0]]), noisy=copies)
    case.close("attention_mask", plan.groups[0].mask[0, 0])
    place = torch.cat([positions(valid), positions(valid)], dim=1)
    case.close("position_ids", place)
    with torch.no_grad():
        states = model.module.model(
            input_ids=torch.cat([noisy, clean], dim=1), position_ids=place, use_cache=False, attention_plan=plan
        ).last_hidden_state
        case.close("logits", model.module.lm_head(states))
    scored = noisy == model.facts.mask_id
    views = Views(
        inputs=noisy,
        targets=clean,
        valid=valid,
        scored=scored,
        weight=scored.float(),
        row=torch.arange(count),
        draw=torch.zeros(count, dtype=torch.int64),
        prompt_length=torch.zeros(count, dtype=torch.int64),
        layout=model.facts.layout,
    )
    want = case.tensors["logits"][:, :length].log_softmax(dim=-1).gather(2, clean[:, :, None])[:, :, 0]
    with torch.no_grad():
        got = model.token_logp(views).logp
    torch.testing.assert_close(got[scored], want[scored], rtol=1e-4, atol=2e-4)


@golden("models/llada2", "config")
def defaults(case: GoldenCase) -> None:
    entry = case.spec["config"]
    published = json.loads((case.folder / entry["file"]).read_text(encoding="utf-8"))
    facts = Llada2Section(path="anywhere").facts(published)
    got = {
        "family": dare_detect_model(published),
        "mask_id": facts.mask_id,
        "eos_id": facts.eos_ids[0],
        "pad_id": facts.pad_id,
        "stop_ids": list(facts.eos_ids),
        "block_length": facts.layout.block_length,
    }
    assert {name: got[name] for name in entry["expected"]} == entry["expected"]
