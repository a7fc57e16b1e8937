"""Approximate caches and parallel decoding on the tiny LLaDA and Dream checkpoints."""

from __future__ import annotations

from functools import partial

import torch

from dare_core.diffusion.denoise import denoise
from dare_core.diffusion.trajectory import states
from dare_core.interfaces import ModelAdapter
from dare_core.testing.goldens import GoldenCase
from dare_core.types import Address, AttentionLayout, DecodingSettings, SelectionRule
from dare_fastdllm.windows import WindowPolicy, window_rows
from tests.goldens.handlers import logits_dream
from tests.goldens.handlers.generation import adapter, check_record
from tests.goldens.runner import golden


def llada_of(case: GoldenCase) -> ModelAdapter:
    published = case.settings
    ids = (published.get("mask_id", 250), published.get("eos_id", 251), published.get("eot_id", 253))
    return adapter(case.folder.parent / "checkpoint", *ids)


def selection_of(case: GoldenCase, otherwise: str) -> SelectionRule:
    if "threshold" in case.spec:
        return SelectionRule("confidence-threshold", {"threshold": case.spec["threshold"]})
    if "factor" in case.spec:
        return SelectionRule("factor", {"factor": case.spec["factor"]})
    return SelectionRule(otherwise)


def check(case: GoldenCase, model: ModelAdapter, settings: DecodingSettings) -> None:
    prompt, window = case.tensors["prompt"], case.spec["cache"]
    forwards = None if window == "none" else partial(window_rows, model, WindowPolicy(window))
    for ties in ("exact", "published"):
        result = denoise(
            model,
            list(prompt),
            settings,
            Address(0, "golden"),
            range(len(prompt)),
            ties=ties,
            snapshots=window == "none",
            forwards=forwards,
        )
        if window == "none":
            check_record(case, result, prompt, torch.ones_like(prompt).bool(), model.facts.mask_id)
            continue
        count = case.spec["n_forward"]
        assert result.forwards.tolist() == [count] * len(prompt)
        case.close("sequences", result.tokens)
        case.close("step_map", result.commit_step)
        case.close("commit_confidence", result.confidence.float())
        seen = states(result.tokens, result.commit_step, result.response, model.facts.mask_id, forwards=count)
        case.close("states", seen)


@golden("models/llada", "generation", decoder="fast_dllm")
def llada(case: GoldenCase) -> None:
    published = case.settings
    settings = DecodingSettings(
        new_tokens=published["gen_length"],
        block_length=published["block_length"],
        steps_per_block=published["steps"] * published["block_length"] // published["gen_length"],
        temperature=published["temperature"],
        selection=selection_of(case, "low-confidence"),
    )
    check(case, llada_of(case), settings)


@golden("models/dream", "generation", decoder="fast_dllm_dream")
def dream(case: GoldenCase) -> None:
    published = case.settings
    settings = DecodingSettings(
        new_tokens=published["max_new_tokens"],
        block_length=published["block_length"],
        steps_per_block=published["steps"] * published["block_length"] // published["max_new_tokens"],
        temperature=published["temperature"],
        selection=selection_of(case, "entropy"),
        schedule="linear-time",
        schedule_eps=published["eps"],
    )
    check(case, logits_dream.adapter(case.folder.parent / "checkpoint"), settings)


@golden("models/llada", "cache", cache=["prefix", "dual"])
def llada_windows(case: GoldenCase) -> None:
    windows(case, llada_of(case))


@golden("models/dream", "cache", cache=["prefix", "dual"])
def dream_windows(case: GoldenCase) -> None:
    windows(case, logits_dream.adapter(case.folder.parent / "checkpoint"))


def windows(case: GoldenCase, model: ModelAdapter) -> None:
    """Published logits stand where they are computed: those of a shifted family belong to the next column."""
    first, second = case.tensors["canvas0"], case.tensors["canvas1"]
    start, end = case.settings["block_start"], case.settings["block_end"]
    rows, width = first.shape
    column, everywhere = torch.arange(width)[None].expand(rows, -1), torch.ones_like(first, dtype=torch.bool)
    prompt_length = torch.full((rows,), start)
    reach = model.open_window_cache(1, 1).reach

    def scored(begin: int, stop: int) -> torch.Tensor:
        return (column >= begin + reach) & (column < min(stop + reach, width))

    def close(name: str, logits: torch.Tensor) -> None:
        found, want = logits.view(rows, -1, logits.shape[1]), case.tensors[name]
        missing = want.shape[1] - found.shape[1]
        assert missing <= reach, "at most the state of the last column predicts nothing"
        known = torch.arange(want.shape[1])[None, :, None] < found.shape[1]
        case.close(name, torch.nn.functional.pad(found, (0, 0, 0, missing)), where=known)

    with torch.no_grad():
        for name, canvas in (("logits_full0", first), ("logits_full1", second)):
            where, layout = scored(0, width), AttentionLayout()
            close(name, model.logits(canvas, everywhere, where, layout=layout, prompt_length=prompt_length))
        for name, stop in (("logits_prefix1", width), ("logits_dual1", end)):
            held, slots = model.open_window_cache(rows, width), torch.arange(rows)
            filled = held.logits(first, everywhere, everywhere, scored(0, width), slots=slots)
            close("logits_full0", filled)
            computed = (column >= start) & (column < stop)
            close(name, held.logits(second, everywhere, computed, scored(start, stop), slots=slots))
