"""DiffusionGemma: logits of the tiny checkpoint, and decoding with recorded random canvases."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from dare_core.backbones.packing import pack_noisy_clean
from dare_core.diffusion.denoise import DenoiseResult, denoise
from dare_core.diffusion.draws import Places
from dare_core.testing.goldens import GoldenCase
from dare_core.types import Address, DecodingSettings, DenoisingStep, EosRule, SelectionRule
from dare_diffusion_gemma.adapter import DiffusionGemmaAdapter
from dare_diffusion_gemma.config import DiffusionGemmaSection
from tests.goldens.runner import golden

GROUP = "models/diffusion_gemma"


@cache
def load(folder: Path) -> DiffusionGemmaAdapter:
    section = DiffusionGemmaSection(path=str(folder))
    return DiffusionGemmaAdapter.load(section, device=torch.device("cpu"), dtype=torch.float32)


def adapter_of(case: GoldenCase) -> DiffusionGemmaAdapter:
    return load(case.folder.parent / "checkpoint")


def canvas_logits(
    adapter: DiffusionGemmaAdapter, prompt: Tensor, real: Tensor, canvas: Tensor, condition: Tensor | None = None
) -> Tensor:
    """[B,C,V] logits of a canvas behind padded prompts."""
    valid = torch.cat([real, torch.ones_like(canvas, dtype=torch.bool)], dim=1)
    where = torch.cat([torch.zeros_like(real), torch.ones_like(canvas, dtype=torch.bool)], dim=1)
    with torch.no_grad():
        logits = adapter.logits(
            torch.cat([prompt, canvas], dim=1),
            valid,
            where,
            layout=adapter.facts.layout,
            prompt_length=real.sum(dim=1),
            condition=condition,
        )
    return logits.view(*canvas.shape, -1)


@golden(GROUP, "logits", "forward: prompt")
def canvas_behind_a_prompt(case: GoldenCase) -> None:
    adapter, prompt, canvas = adapter_of(case), case.tensors["input_ids"], case.tensors["canvas"]
    real = torch.ones_like(prompt, dtype=torch.bool)
    first = canvas_logits(adapter, prompt, real, canvas)
    case.close("logits_0", first)
    case.close("logits_1", canvas_logits(adapter, prompt, real, canvas, adapter.condition_on(first.flatten(0, 1))))
    # A last block whose state is read makes everything before it finished tokens.
    row = torch.cat([prompt, canvas], dim=1)
    valid, where = torch.ones_like(row, dtype=torch.bool), torch.zeros_like(row, dtype=torch.bool)
    where[:, -1] = True
    plan, layout = adapter.attention.plan, adapter.facts.layout
    packed = pack_noisy_clean(row, row, valid, where, layout, real.sum(dim=1), make_plan=plan)
    with torch.no_grad():
        states = adapter.module.model(
            input_ids=packed.tokens[None],
            position_ids=packed.positions[None],
            attention_plan=packed.plan,
            noisy=packed.noisy,
        )
    case.close("encoder_hidden", states.last_hidden_state[:, ~packed.noisy])


@golden(GROUP, "logits", "forward: left-padded")
def padded_prompts(case: GoldenCase) -> None:
    t = case.tensors
    real = t["attention_mask"].bool()
    assert torch.equal(t["decoder_attention_mask"][:, : real.shape[1]].bool(), real)
    case.close("logits", canvas_logits(adapter_of(case), t["input_ids"], real, t["canvas"]))


class RecordedCanvases:
    """Random tokens [draws,B,C] in order of use, as uniform numbers that give them."""

    def __init__(self, tokens: Tensor, vocab_size: int) -> None:
        self._waiting, self._vocab_size = list(tokens), vocab_size

    def start(self, places: Places) -> Tensor:
        return self._next()

    def renewed(self, places: Places) -> Tensor:
        return self._next()

    def token(self, places: Places) -> Tensor:
        raise AssertionError("nothing is drawn at temperature 0")

    def gumbel(self, places: Places, vocab_size: int) -> Tensor:
        raise AssertionError("nothing is drawn at temperature 0")

    def selection(self, places: Places) -> Tensor:
        raise AssertionError("positions are accepted by entropy")

    def _next(self) -> Tensor:
        return (self._waiting.pop(0).flatten().to(torch.float64) + 0.5) / self._vocab_size


def settings_of(case: GoldenCase) -> DecodingSettings:
    s = case.settings
    options = {
        "bound": s["entropy_bound"],
        "hot": s["t_max"],
        "cold": s["t_min"],
        "stable_steps": s["stability_threshold"],
        "stop_entropy": s["confidence_threshold"],
    }
    return DecodingSettings(
        new_tokens=s["max_new_tokens"],
        block_length=s["canvas_length"],
        steps_per_block=s["max_denoising_steps"],
        eos_rule=EosRule.STOP,
        whole_blocks=True,
        schedule="anew",
        selection=SelectionRule("entropy-renoise", options),
    )


@dataclass
class Run:
    """What one call of the decoder saw and guessed, forward by forward, and what came of it."""

    inputs: list[Tensor] = field(default_factory=list)
    guesses: list[Tensor] = field(default_factory=list)
    steps: list[DenoisingStep] = field(default_factory=list)
    result: DenoiseResult | None = None


def decode(case: GoldenCase, *, cached: bool, nudge: float = 0.0) -> Run:
    """Decode with the recorded canvases; ``nudge`` changes what the model sees of its last guess, relatively."""
    adapter, run = adapter_of(case), Run()
    forward, condition_on = adapter.module.model.forward, adapter.condition_on

    def seen(**kwargs):
        if len(kwargs["read"]):
            run.inputs.append(kwargs["input_ids"][:, kwargs["noisy"]])
        return forward(**kwargs)

    def guessed(logits: Tensor) -> Tensor:
        run.guesses.append(logits)
        return condition_on(logits) * (1 + nudge)

    adapter.module.model.forward, adapter.condition_on = seen, guessed
    prompt = case.tensors["prompt"]
    # A row that the published run stopped earlier must not run out of numbers.
    spare = case.tensors["random_canvases"][:1].expand(case.settings["max_denoising_steps"], -1, -1)
    try:
        run.result = denoise(
            adapter,
            list(prompt),
            settings_of(case),
            Address(0, "golden"),
            range(len(prompt)),
            noise=RecordedCanvases(torch.cat([case.tensors["random_canvases"], spare]), adapter.facts.vocab_size),
            cache=cached,
            watch=run.steps.append,
        )
    finally:
        del adapter.module.model.forward, adapter.condition_on
    return run


def comparable(case: GoldenCase, run: Run, nudged: Run) -> list[bool]:
    """Per forward, whether rounding leaves its decisions alone.

    Each forward sees the last one's guess, and on a random checkpoint that loop amplifies a difference about tenfold
    per forward: the published code, run again with another attention or expert kernel, departs from its own record.
    What a relative change of 1e-6 moves by less than half the record's smallest margin is compared.
    """
    margins = case.spec["margins"]
    least = min(margins["min_entropy_bound_or_rank_margin"], margins["min_top1_top2_processed_logit_margin"])
    moved = [float((a - b).abs().max()) for a, b in zip(run.guesses, nudged.guesses, strict=False)]
    same = [torch.equal(a, b) for a, b in zip(run.inputs, nudged.inputs, strict=False)]
    return [far < least / 2 and equal for far, equal in zip(moved, same, strict=True)]


@golden(GROUP, "generation", "", decoder="diffusion_gemma_canvas")
def generation(case: GoldenCase) -> None:
    size, width = case.settings["canvas_length"], case.tensors["prompt"].shape[1]
    planned, left = case.settings["max_denoising_steps"], case.tensors["steps_remaining"].tolist()
    starts = [number for number, n in enumerate(left) if n == planned]
    for cached in (True, False):
        run = decode(case, cached=cached)
        assert run.result is not None
        assert run.result.cached == cached
        assert not run.result.replayable
        clear = comparable(case, run, decode(case, cached=cached, nudge=1e-6))
        lasting = 0
        for number, n in enumerate(left):
            if not all(clear[: number + 1]):
                break
            block = sum(start <= number for start in starts) - 1
            columns = slice(width + block * size, width + (block + 1) * size)
            assert n == planned - (number - starts[block])
            case.close(f"canvas_in_{number:02d}", run.inputs[number])
            case.close(f"argmax_{number:02d}", run.steps[number].tokens[:, columns])
            if number + 1 not in (*starts, len(left)):
                # A block's last forward writes every position.
                case.close(f"accepted_{number:02d}", run.steps[number].decided[:, columns])
            lasting = number + 1
        assert lasting >= 3
        if lasting == len(left):
            case.close("sequences", padded(case, run.result))


def padded(case: GoldenCase, result: DenoiseResult) -> Tensor:
    """Tokens with padding behind the first end token, as published."""
    end = (result.tokens == case.settings["eos_id"]) & result.response
    after = result.response & (end.cumsum(dim=1) - end.long() > 0)
    return result.tokens.masked_fill(after, case.settings["pad_id"])
