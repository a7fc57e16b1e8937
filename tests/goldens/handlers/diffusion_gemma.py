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
    """Random tokens [draws,B,C], in order of use one to start each canvas and one after each forward, as uniform
    numbers that give them; all rows use those of the record's one row."""

    def __init__(self, tokens: Tensor, vocab_size: int) -> None:
        self._tokens, self._vocab_size = tokens[:, 0], vocab_size

    def start(self, places: Places) -> Tensor:
        return self._drawn(places, 0)

    def renewed(self, places: Places) -> Tensor:
        return self._drawn(places, 1)

    def token(self, places: Places) -> Tensor:
        raise AssertionError("nothing is drawn at temperature 0")

    def gumbel(self, places: Places, vocab_size: int) -> Tensor:
        raise AssertionError("nothing is drawn at temperature 0")

    def selection(self, places: Places) -> Tensor:
        raise AssertionError("positions are accepted by entropy")

    def _drawn(self, places: Places, more: int) -> Tensor:
        draws, width = self._tokens.shape
        # A row that has left the record may need more numbers than it holds.
        used = (places.forward + places.offset // width + more) % draws
        return (self._tokens[used, places.offset % width].to(torch.float64) + 0.5) / self._vocab_size


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
    """Forward by forward, what the active rows saw [R,C], and what the decoder told of them; and what came of it."""

    inputs: list[Tensor] = field(default_factory=list)
    steps: list[DenoisingStep] = field(default_factory=list)
    result: DenoiseResult | None = None


def decode(case: GoldenCase, nudges: Tensor, *, cached: bool) -> Run:
    """Decode the prompt in P rows with the recorded canvases. ``nudges`` [K,P,C,V] are added to the logits of which
    the model sees its guess after each of the first K forwards."""
    adapter, run = adapter_of(case), Run()
    forward, condition_on = adapter.module.model.forward, adapter.condition_on
    rows, width = nudges.shape[1], case.settings["canvas_length"]
    active = torch.arange(rows)

    def seen(**kwargs):
        if len(kwargs["read"]):
            run.inputs.append(kwargs["input_ids"][0, kwargs["noisy"]].view(-1, width))
        return forward(**kwargs)

    def guessed(logits: Tensor) -> Tensor:
        number = len(run.steps)
        return condition_on(logits + nudges[number, active].flatten(0, 1) if number < len(nudges) else logits)

    def told(step: DenoisingStep) -> None:
        nonlocal active
        run.steps.append(step)
        active = step.row[~step.finished]

    adapter.module.model.forward, adapter.condition_on = seen, guessed
    numbers = RecordedCanvases(case.tensors["random_canvases"], adapter.facts.vocab_size)
    prompts = [case.tensors["prompt"][0].tolist()] * rows
    try:
        run.result = denoise(
            adapter,
            prompts,
            settings_of(case),
            Address(0, "golden"),
            range(rows),
            noise=numbers,
            cache=cached,
            watch=told,
        )
    finally:
        del adapter.module.model.forward, adapter.condition_on
    return run


@dataclass(frozen=True)
class Record:
    """The forwards of a case: how many, and at which of them a canvas starts."""

    case: GoldenCase
    forwards: int
    starts: tuple[int, ...]

    @classmethod
    def of(cls, case: GoldenCase) -> Record:
        left, planned = case.tensors["steps_remaining"].tolist(), case.settings["max_denoising_steps"]
        starts = tuple(number for number, n in enumerate(left) if n == planned)
        begun = [max(start for start in starts if start <= number) for number in range(len(left))]
        assert left == [planned - (number - start) for number, start in enumerate(begun)]
        return cls(case, len(left), starts)

    def canvas(self, number: int) -> int:
        """Which canvas a forward denoises."""
        return sum(start <= number for start in self.starts) - 1

    def within(self, number: int) -> int:
        """Forwards of its canvas before a forward."""
        return number - self.starts[self.canvas(number)]

    def followed(self, run: Run, rows: int, until: int) -> Tensor:
        """[P] bool rows that equal the record in every forward up to ``until``."""
        size, begin = self.case.settings["canvas_length"], self.case.tensors["prompt"].shape[1]
        whole = torch.ones(rows, dtype=torch.bool)
        for number in range(until + 1):
            step, block = run.steps[number], self.canvas(number)
            columns = slice(begin + block * size, begin + (block + 1) * size)
            same = (run.inputs[number] == self._recorded("canvas_in", number)).all(dim=1)
            same &= (step.tokens[:, columns] == self._recorded("argmax", number)).all(dim=1)
            if number + 1 not in (*self.starts, self.forwards):
                # A block's last forward writes every position.
                same &= (step.decided[:, columns] == self._recorded("accepted", number)).all(dim=1)
            whole &= torch.zeros_like(whole).index_copy(0, step.row, same)
        return whole

    def _recorded(self, name: str, number: int) -> Tensor:
        return self.case.tensors[f"{name}_{number:02d}"]


#: rows that decode the same prompt, each with nudges of its own
ROWS = 64
#: standard deviation of a nudge; logits may differ by 20 times as much (the cases' ``atol``)
NUDGE = 1e-5
#: tries with other nudges before no row follows a forward
TRIES = 8
#: forwards of one canvas after which nudges of this size have become decisions
HORIZON = 5


@golden(GROUP, "generation", "", decoder="diffusion_gemma_canvas")
def generation(case: GoldenCase) -> None:
    """The record is followed, forward by forward, by rows whose guesses differ by less than the case's tolerance.

    Each forward sees the last one's guess, and on a random checkpoint that loop amplifies a difference about tenfold
    per forward, until a new canvas starts without a guess: the published code, run again with another attention or
    expert kernel or instruction set, leaves its own record of a long canvas after five to seven forwards. So of every
    canvas the first five forwards are compared.
    """
    record, vocab_size = Record.of(case), adapter_of(case).facts.vocab_size
    size = (ROWS, case.settings["canvas_length"], vocab_size)
    for cached in (True, False):
        generator = torch.Generator().manual_seed(0)
        nudges, run = torch.zeros(0, *size), Run()
        following = torch.zeros(ROWS, dtype=torch.bool)
        for number in range(record.forwards):
            if record.within(number) == HORIZON:
                break
            for _ in range(TRIES):
                run = decode(case, nudges, cached=cached)
                following = record.followed(run, ROWS, number)
                if following.any():
                    break
                nudges = NUDGE * torch.randn(nudges.shape, generator=generator)
            assert following.any(), f"no row follows forward {number}, cached: {cached}"
            kept = following.nonzero()[:, 0][torch.arange(ROWS) % int(following.sum())]
            nudges = torch.cat([nudges[:, kept], NUDGE * torch.randn(1, *size, generator=generator)])
        else:
            assert run.result is not None
            row = padded(case, run.result)[following][:1]
            case.close("sequences", row)
        assert run.result is not None
        assert run.result.cached == cached
        assert not run.result.replayable


def padded(case: GoldenCase, result: DenoiseResult) -> Tensor:
    """Tokens with padding behind the first end token, as published."""
    end = (result.tokens == case.settings["eos_id"]) & result.response
    after = result.response & (end.cumsum(dim=1) - end.long() > 0)
    return result.tokens.masked_fill(after, case.settings["pad_id"])
