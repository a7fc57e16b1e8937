"""Semi-autoregressive decoding of the tiny LLaDA checkpoint, and the parts of its sampler."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from dare_core.diffusion.denoise import DenoiseResult, denoise
from dare_core.diffusion.draws import Places
from dare_core.diffusion.sampling import gumbel_scores
from dare_core.diffusion.schedules import transfer_schedule
from dare_core.diffusion.trajectory import states
from dare_core.testing.goldens import GoldenCase
from dare_core.types import Address, DecodingSettings, EosRule, SelectionRule
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from tests.goldens.runner import golden


@dataclass(frozen=True)
class RecordedDraws:
    """Uniform numbers of a published run, [B,L] or [B,L,V] per forward, on its left-padded canvas."""

    steps: list[Tensor]
    prompt_width: int

    def token(self, places: Places) -> Tensor:
        return self._at(places)

    def gumbel(self, places: Places, vocab_size: int) -> Tensor:
        return self._at(places)

    def selection(self, places: Places) -> Tensor:
        return self._at(places)

    def _at(self, places: Places) -> Tensor:
        drawn = torch.stack(self.steps)[places.forward, places.row, self.prompt_width + places.offset]
        return drawn.to(torch.float64)


@cache
def adapter(folder: Path, mask_id: int, eos_id: int, eot_id: int) -> LladaAdapter:
    section = LladaSection(path=str(folder), mask_id=mask_id, eos_ids=(eos_id,), eot_id=eot_id)
    return LladaAdapter.load(section, device=torch.device("cpu"), dtype=torch.float32)


def decoding_settings(case: GoldenCase) -> DecodingSettings:
    published = case.settings
    blocks = published["gen_length"] // published["block_length"]
    rule = EosRule.FILL
    if published.get("logits_eos_inf"):
        rule = EosRule.SUPPRESS
    if published.get("confidence_eos_eot_inf"):
        rule = EosRule.SUPPRESS_CONFIDENCE
    names = {"low_confidence": "low-confidence", "random": "random"}
    return DecodingSettings(
        new_tokens=published["gen_length"],
        block_length=published["block_length"],
        steps_per_block=published["steps"] // blocks,
        temperature=published["temperature"],
        guidance=published.get("cfg_scale", 0.0),
        eos_rule=rule,
        selection=SelectionRule(names[published.get("remasking", "low_confidence")]),
    )


@golden("models/llada", "generation", decoder="llada_semi_ar")
def semi_autoregressive(case: GoldenCase) -> None:
    prompt, settings = case.tensors["prompt"], case.settings
    real = case.tensors.get("attention_mask", torch.ones_like(prompt)).bool()
    model = adapter(case.folder.parent / "checkpoint", settings["mask_id"], settings["eos_id"], settings["eot_id"])
    rows = [ids[kept] for ids, kept in zip(prompt, real, strict=True)]
    recorded = [case.tensors[name] for name in sorted(case.names("input")) if name.startswith("draw_")]
    draws = RecordedDraws(recorded, prompt.shape[1]) if recorded else None
    for ties in ("exact", "published"):
        result = denoise(
            model,
            rows,
            decoding_settings(case),
            Address(0, "golden"),
            range(len(rows)),
            sampler="gumbel",
            ties=ties,
            noise=draws,
            snapshots=True,
        )
        check_record(case, result, prompt, real, model.facts.mask_id)


def check_record(case: GoldenCase, result: DenoiseResult, prompt: Tensor, real: Tensor, mask_id: int) -> None:
    assert result.forwards.tolist() == [case.spec["n_forward"]] * len(prompt)
    seen = states(result.tokens, result.commit_step, result.response, mask_id, forwards=case.spec["n_forward"])
    case.close("sequences", left_padded(result.tokens, prompt, real))
    case.close("step_map", left_padded(result.commit_step, torch.full_like(prompt, -1), real))
    case.close("commit_confidence", left_padded(result.confidence, torch.zeros_like(prompt), real).float())
    padded = [left_padded(seen[:, step], prompt, real) for step in range(seen.shape[1])]
    case.close("states", torch.stack(padded, dim=1))
    assert torch.equal(result.snapshots.inputs, seen[:, :-1].flatten(0, 1))


def left_padded(rows: Tensor, prompt: Tensor, real: Tensor) -> Tensor:
    """Rows [B,L] that start at column 0, moved behind the padding of a left-padded ``prompt`` [B,P]."""
    moved = []
    for row, filler, kept in zip(rows, prompt, real, strict=True):
        pads = int((~kept).sum())
        moved.append(torch.cat([filler[:pads].to(row.dtype), row[: rows.shape[1] - pads]]))
    return torch.stack(moved)


@golden("models/llada", "sampler", "selection: noisy")
def gumbel(case: GoldenCase) -> None:
    given = case.tensors
    scores = gumbel_scores(given["logits"], given["u"], case.settings["temperature"])
    case.close("noisy", scores.exp())
    case.close("token", scores.argmax(dim=1))


@golden("models/llada", "sampler", "selection: number of tokens to commit per step")
def schedule(case: GoldenCase) -> None:
    for name in case.names("expected"):
        case.close(name, transfer_schedule(case.tensors["masked_count"], int(name.removeprefix("steps"))))
