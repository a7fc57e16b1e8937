"""Decoding of the tiny Dream checkpoint, its confidences, and the LLaDA sampler on the LLaDA-MoE checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.diffusion.confidence import entropy_confidence, margin_confidence, token_confidence
from dare_core.diffusion.denoise import denoise
from dare_core.diffusion.draws import Places
from dare_core.diffusion.sampling import filter_logits
from dare_core.testing.goldens import GoldenCase
from dare_core.types import Address, DecodingSettings, SelectionRule
from tests.goldens.handlers import logits_dream, logits_llada_moe
from tests.goldens.handlers.generation import check_record, decoding_settings
from tests.goldens.runner import golden

RULES = {
    "origin": "independent",
    "maskgit_plus": "maskgit-plus",
    "topk_margin": "topk-margin",
    "entropy": "entropy",
    "confidence_threshold": "budgeted-threshold",
}


@dataclass(frozen=True)
class MaskedDraws:
    """Uniform numbers of a published run: per forward one for every masked position of the batch, row by row."""

    steps: Sequence[Tensor]

    def token(self, places: Places) -> Tensor:
        return self.selection(places)

    def gumbel(self, places: Places, vocab_size: int) -> Tensor:
        raise NotImplementedError

    def selection(self, places: Places) -> Tensor:
        forward = int(places.forward[0])
        assert (places.forward == forward).all()
        return self.steps[forward].to(torch.float64)


@golden("models/dream", "generation", decoder="dream")
def dream(case: GoldenCase) -> None:
    prompt, published = case.tensors["prompt"], case.settings
    real = case.tensors.get("attention_mask", torch.ones_like(prompt)).bool()
    model = logits_dream.adapter(case.folder.parent / "checkpoint")
    options = {"threshold": published["threshold"]} if "threshold" in published else {}
    if published.get("alg_temp"):
        options["order_temperature"] = published["alg_temp"]
    settings = DecodingSettings(
        new_tokens=published["max_new_tokens"],
        block_length=published["max_new_tokens"],
        steps_per_block=published["steps"],
        temperature=published["temperature"],
        top_p=published.get("top_p") or 1.0,
        top_k=published.get("top_k") or 0,
        selection=SelectionRule(RULES[published["alg"]], options),
        schedule="linear-time",
        schedule_eps=published["eps"],
    )
    rows = [ids[kept] for ids, kept in zip(prompt, real, strict=True)]
    recorded = [case.tensors[name] for name in sorted(case.names("input")) if name.startswith("draw_")]
    draws = MaskedDraws(recorded) if recorded else None
    for ties in ("exact", "published"):
        result = denoise(
            model, rows, settings, Address(0, "golden"), range(len(rows)), ties=ties, noise=draws, snapshots=True
        )
        check_record(case, result, prompt, real, model.facts.mask_id)


@golden("models/dream", "sampler", "selection: confidences at temperature 0")
def confidences(case: GoldenCase) -> None:
    logits = case.tensors["logits"]
    filters = {"topp": {"top_p": 0.8}, "topk": {"top_k": 3}, "topp_topk_entropy": {"top_p": 0.9, "top_k": 5}}
    for name in ("plain", "margin", "entropy", *filters):
        kept = filter_logits(logits, **filters.get(name, {}))
        token = kept.argmax(dim=1)
        if name == "margin":
            confidence = margin_confidence(kept, "published")
        elif name.endswith("entropy"):
            confidence = entropy_confidence(kept, "published")
        else:
            confidence = token_confidence(kept, token, "published")
        case.close(f"token_{name}", token)
        case.close(f"conf_{name}", confidence)


@golden("models/llada_moe", "generation", decoder="llada_semi_ar")
def llada_moe(case: GoldenCase) -> None:
    prompt = case.tensors["prompt"]
    model = logits_llada_moe.adapter(case.folder.parent / "checkpoint")
    for ties in ("exact", "published"):
        result = denoise(
            model,
            list(prompt),
            decoding_settings(case),
            Address(0, "golden"),
            range(len(prompt)),
            ties=ties,
            snapshots=True,
        )
        check_record(case, result, prompt, torch.ones_like(prompt).bool(), model.facts.mask_id)
