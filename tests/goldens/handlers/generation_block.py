"""Block decoding of the tiny SDAR and LLaDA2 checkpoints, with their exact cache and without."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from dare_core.diffusion.completion import completion_mask
from dare_core.diffusion.denoise import DenoiseResult, denoise
from dare_core.diffusion.trajectory import last_edit_step, states
from dare_core.interfaces import ModelAdapter
from dare_core.testing.goldens import GoldenCase
from dare_core.types import Address, AttentionLayout, DecodingSettings, EosRule, SelectionRule
from tests.goldens.handlers import logits_llada2, logits_sdar
from tests.goldens.runner import golden

#: published names -> rules and options
SDAR_RULES = {
    "sequential": lambda _: SelectionRule("left-to-right"),
    "low_confidence_static": lambda _: SelectionRule("low-confidence", {"distribution": "sampling"}),
    "low_confidence_dynamic": lambda s: SelectionRule("dynamic-threshold", {"threshold": s["confidence_threshold"]}),
    "entropy_bounded": lambda s: SelectionRule("entropy-bounded", {"bound": s.get("eb_threshold", 0.35)}),
}


def protocol(case: GoldenCase, steps: int, selection: SelectionRule, eos_rule: EosRule) -> DecodingSettings:
    published = case.settings
    return DecodingSettings(
        new_tokens=published["gen_length"],
        block_length=published["block_length"],
        steps_per_block=steps,
        temperature=published["temperature"],
        eos_rule=eos_rule,
        selection=selection,
        whole_blocks=True,
        schedule="even-block",
    )


def canvas_of(result: DenoiseResult, mask_id: int) -> Tensor:
    """The block-aligned buffer at the end: what was not decoded is masked."""
    return result.tokens.masked_fill(~result.prompt & (result.commit_step < 0), mask_id)


def check(case: GoldenCase, model: ModelAdapter, settings: DecodingSettings) -> list[DenoiseResult]:
    prompt, mask_id, found = case.tensors["prompt"], model.facts.mask_id, []
    for cached, ties in ((True, "exact"), (False, "exact"), (True, "published")):
        result = denoise(
            model,
            list(prompt),
            settings,
            Address(0, "golden"),
            range(len(prompt)),
            ties=ties,
            snapshots=True,
            cache=cached,
        )
        assert result.cached == cached
        assert result.forwards.tolist() == [case.spec["n_forward"]] * len(prompt)
        canvas = canvas_of(result, mask_id)
        case.close("sequences" if "sequences" in case.tensors else "canvas", canvas)
        case.close("step_map", result.commit_step)
        case.close("commit_confidence", result.confidence.float())
        forwards = case.spec["n_forward"]
        seen = states(canvas, result.commit_step, ~result.prompt, mask_id, edits=result.edits, forwards=forwards)
        case.close("states", seen)
        assert torch.equal(result.snapshots.inputs, seen[:, :-1].flatten(0, 1))
        found.append(result)
    return found


@cache
def stopping_at(folder: Path, group: str, mask_id: int, eos_ids: tuple[int, ...]) -> ModelAdapter:
    adapter, section = logits_sdar.FAMILIES[group]
    chosen = section(path=str(folder), mask_id=mask_id, eos_ids=eos_ids)
    return adapter.load(chosen, device=torch.device("cpu"), dtype=torch.float32)


@golden("models/sdar", "generation", decoder="sdar_block")
@golden("models/sdar_moe", "generation", decoder="sdar_block")
def sdar(case: GoldenCase) -> None:
    published = case.settings
    stops = published.get("stop_ids")
    model = logits_sdar.adapter_of(case)
    if stops:
        model = stopping_at(case.folder.parent / "checkpoint", case.group, published["mask_id"], tuple(stops))
    selection = SDAR_RULES[published["remasking_strategy"]](published)
    settings = protocol(case, published["denoising_steps"], selection, EosRule.STOP if stops else EosRule.FILL)
    check(case, model, settings)


@golden("models/llada2", "generation", decoder="llada2_block", version="2.0")
def llada2_0(case: GoldenCase) -> None:
    published = case.settings
    rule = EosRule.STOP_EARLY if published.get("eos_early_stop") else EosRule.STOP
    selection = SelectionRule("dynamic-threshold", {"threshold": published["threshold"]})
    steps = min(published["steps"], published["gen_length"] // published.get("minimal_topk", 1))
    answers(case, protocol(case, steps, selection, rule))


@golden("models/llada2", "generation", decoder="llada2_block", version="2.1")
def llada2_1(case: GoldenCase) -> None:
    published = case.settings
    rule = EosRule.STOP if published.get("eos_early_stop") else EosRule.FILL
    names = {
        "threshold": "threshold",
        "editing_threshold": "edit_threshold",
        "num_to_transfer": "at_least",
        "max_post_steps": "max_post_steps",
    }
    options = {ours: published[theirs] for theirs, ours in names.items() if theirs in published}
    settings = protocol(case, published["block_length"], SelectionRule("joint-threshold", options), rule)
    for result in answers(case, settings):
        assert len(result.edits) == case.spec["n_edits"]
        case.close("last_edit_step", last_edit_step(result.edits, result.commit_step))


def answers(case: GoldenCase, settings: DecodingSettings) -> list[DenoiseResult]:
    """Also what is returned: the answer, up to the first end token and the asked length."""
    model = logits_llada2.adapter_of(case)
    found = check(case, model, settings)
    for result in found:
        completion = completion_mask(result.tokens, result.asked, model.facts.eos_ids[:1])
        case.close("returned", result.tokens[completion].view(len(completion), -1))
    return found


@golden("models/sdar", "cache", cache="exact")
@golden("models/sdar_moe", "cache", cache="exact")
def sdar_cache(case: GoldenCase) -> None:
    exact_cache(case, logits_sdar.adapter_of(case))


@golden("models/llada2", "cache", cache="exact")
def llada2_cache(case: GoldenCase) -> None:
    exact_cache(case, logits_llada2.adapter_of(case))


def exact_cache(case: GoldenCase, model: ModelAdapter) -> None:
    tokens, layout = case.tensors["input_ids"], AttentionLayout("block", case.settings["block_length"])
    rows, width = tokens.shape
    prefix = torch.full((rows,), case.settings["prefix_length"])
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    cached = everywhere.cumsum(dim=1) <= prefix[:, None]
    held = model.open_cache(rows, width)
    shared = {"layout": layout, "prompt_length": prefix, "slots": torch.arange(rows), "keep": prefix}
    with torch.no_grad():
        full = model.logits(tokens, everywhere, everywhere, layout=layout, prompt_length=prefix)
        beginning = held.logits(tokens, cached, cached, **shared)
        block = held.logits(tokens, everywhere, ~cached, **shared)
        # Not stored: the same block again, against the same cache.
        again = held.logits(tokens, everywhere, ~cached, **shared)
    full = full.view(rows, width, -1)
    case.close("logits_full", full)
    case.close("logits_cached_block", block.view(rows, -1, block.shape[1]))
    torch.testing.assert_close(beginning.view(rows, -1, block.shape[1]), full[:, : int(prefix[0])])
    assert torch.equal(block, again)
    assert (block.view(rows, -1, block.shape[1]) - full[:, int(prefix[0]) :]).abs().max() < 1e-5
