"""Logits of the tiny SDAR checkpoints, through the adapters, and what the family's configs say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from dare_core.backbones.head import project
from dare_core.backbones.packing import Packed, pack_noisy_clean
from dare_core.diffusion.layouts import block_index, positions, visible
from dare_core.testing.goldens import GoldenCase
from dare_core.types import AttentionLayout, Views
from dare_sdar.adapter import SdarAdapter, SdarMoeAdapter
from dare_sdar.config import SdarMoeSection, SdarSection
from dare_sdar.plugin import dare_detect_model
from tests.goldens.runner import golden

FAMILIES = {"models/sdar": (SdarAdapter, SdarSection), "models/sdar_moe": (SdarMoeAdapter, SdarMoeSection)}


@cache
def load(folder: Path, group: str, mask_id: int | None, block_length: int) -> SdarAdapter:
    adapter, section = FAMILIES[group]
    chosen = section(path=str(folder), mask_id=mask_id, block_length=block_length)
    return adapter.load(chosen, device=torch.device("cpu"), dtype=torch.float32)


def adapter_of(case: GoldenCase) -> SdarAdapter:
    settings = case.settings
    return load(case.folder.parent / "checkpoint", case.group, settings.get("mask_id"), settings["block_length"])


def forward(adapter: SdarAdapter, tokens: Tensor, valid: Tensor, layout: AttentionLayout | None = None) -> Tensor:
    """[B,L,V] logits, zero at padding."""
    with torch.no_grad():
        got = adapter.logits(
            tokens, valid, valid, layout=layout or adapter.facts.layout, prompt_length=valid.sum(dim=1)
        )
    full = torch.zeros(*tokens.shape, got.shape[1])
    full[valid] = got
    return full


def plain(case: GoldenCase) -> None:
    adapter, tokens = adapter_of(case), case.tensors["input_ids"]
    valid = case.tensors.get("attention_mask", torch.ones_like(tokens)).bool()
    layout = adapter.facts.layout
    got = forward(adapter, tokens, valid)
    blocks = block_index(valid, valid.sum(dim=1), layout)
    if "logits_block_causal" in case.tensors:
        case.close("logits_block_causal", got)
        case.close("attention_mask_block_causal", visible(blocks)[0])
        # One block as long as the row: everything is visible.
        case.close("logits_full", forward(adapter, tokens, valid, AttentionLayout("block", tokens.shape[1])))
        return
    case.close("logits", got, where=valid[:, :, None])
    case.close("position_ids", positions(valid), where=valid)
    itself = torch.eye(tokens.shape[1], dtype=torch.bool) & ~valid[:, :, None]
    case.close("attention_mask_3d", visible(blocks) | itself)


def two_copies(case: GoldenCase) -> None:
    """Everything the noisy half says; the clean half is the plain forward, and the product never computes it twice."""
    adapter = adapter_of(case)
    names = ("noisy", "clean") if "noisy" in case.tensors else ("noisy_ids", "input_ids")
    lengths = case.settings.get("lengths", [case.tensors[names[0]].shape[1]])
    noisy, clean = (rows(case.tensors[name], lengths) for name in names)
    valid = rows(torch.ones_like(case.tensors[names[0]]), lengths).bool()
    prompt = torch.zeros(len(lengths), dtype=torch.int64)
    packed = pack_noisy_clean(noisy, clean, valid, valid, adapter.facts.layout, prompt)
    halves = torch.zeros(2, *valid.shape, adapter.facts.vocab_size)
    with torch.no_grad():
        halves[0][valid] = project(adapter._read_states(packed), adapter._head)
    halves[1] = forward(adapter, clean, valid)
    case.close("logits", joined(halves, lengths)[None])
    check_layout(case, packed, adapter.facts.layout, lengths)
    check_scores(case, adapter, noisy, clean, valid, lengths)


def rows(flat: Tensor, lengths: list[int]) -> Tensor:
    """[1,sum] -> [rows,longest], zeros behind."""
    return torch.nn.utils.rnn.pad_sequence(list(flat[0].split(lengths)), batch_first=True)


def joined(halves: Tensor, lengths: list[int]) -> Tensor:
    """[2,rows,L,...] -> noisy_1 clean_1 noisy_2 clean_2 ... without padding."""
    return torch.cat([halves[half, row, :length] for row, length in enumerate(lengths) for half in (0, 1)])


def check_layout(case: GoldenCase, packed: Packed, layout: AttentionLayout, lengths: list[int]) -> None:
    """Tokens, positions and mask, apart from each row's last clean block, which nothing scored sees."""
    size, kept = int(layout.block_length or 0), []
    for length in lengths:
        kept += [True] * length + [place < (length - 1) // size * size for place in range(length)]
    keep = torch.tensor(kept)
    want = case.tensors["attention_mask"].squeeze(0)[keep][:, keep]
    got = torch.zeros_like(want)
    for group in packed.plan.groups:
        assert group.mask is not None
        for index, mask in zip(group.index, group.mask[:, 0], strict=True):
            got[index[:, None], index] = mask
    assert torch.equal(got, want)
    position_ids = case.tensors.get("concat_position_ids", case.tensors["position_ids"])
    assert torch.equal(packed.positions, position_ids[0][keep])
    if "concat_ids" in case.tensors:
        assert torch.equal(packed.tokens, case.tensors["concat_ids"][0][keep])


def check_scores(
    case: GoldenCase, adapter: SdarAdapter, noisy: Tensor, clean: Tensor, valid: Tensor, lengths: list[int]
) -> None:
    """Log-probabilities of the masked tokens, as training reads them."""
    scored = valid & (noisy == adapter.facts.mask_id)
    count = torch.arange(len(noisy))
    views = Views(
        inputs=noisy,
        targets=clean,
        valid=valid,
        scored=scored,
        weight=scored.float(),
        row=count,
        draw=count * 0,
        prompt_length=count * 0,
        layout=adapter.facts.layout,
    )
    with torch.no_grad():
        logp = adapter.token_logp(views).logp
    keep = joined(torch.stack([scored, torch.zeros_like(scored)]), lengths)
    if "keep" in case.tensors:
        case.close("keep", keep[None])
    targets = joined(torch.stack([clean, clean]), lengths)[keep]
    want = case.tensors["logits"][0, keep].log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(logp[scored], want, rtol=1e-4, atol=2e-4)


@golden("models/sdar", "logits")
@golden("models/sdar_moe", "logits")
def logits(case: GoldenCase) -> None:
    if "noisy" in case.tensors or "noisy_ids" in case.tensors:
        two_copies(case)
    else:
        plain(case)


@golden("models/sdar_moe", "config")
def config_defaults(case: GoldenCase) -> None:
    published = json.loads((case.folder / case.spec["config"]["file"]).read_text(encoding="utf-8"))
    facts = SdarMoeSection(path="anywhere").facts(published)
    got = {
        "family": (dare_detect_model(published) or "").replace("-", "_"),
        "mask_id": facts.mask_id,
        "pad_id": facts.pad_id,
        "block_length": facts.layout.block_length,
        "stop_ids": list(facts.eos_ids),
    }
    assert got == case.spec["config"]["expected"]
