"""The denoising loop of masked and block models: block by block from left to right, surest tokens first.

LLaDA's semi-autoregressive sampler (Nie et al. 2025, arXiv:2502.09992, algorithm 5) and its likes. Per block of n
masked tokens and S steps, step i commits n // S tokens, one more for i < n mod S; which ones is up to the selection
rule. Each forward sees the whole canvas as the model's layout allows, and only undecided positions are scored.

Choices left open: the mask token is never proposed but stays in the softmax; a block shorter than S takes one
step per token; classifier-free guidance is z = u + (w + 1)(c - u), where u sees the prompt replaced by masks, and
counts as one forward; a row's random numbers are addressed by its sample id, forward and position, so that a row
equals the row decoded alone. Rows that are done leave the batch and waiting ones enter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.diffusion.canvas import Canvas, masked_canvas
from dare_core.diffusion.confidence import Ties
from dare_core.diffusion.draws import AddressedDraws, Draws, Places
from dare_core.diffusion.proposal import Proposals, proposer
from dare_core.diffusion.rules import find_rule
from dare_core.diffusion.sampling import Sampler
from dare_core.diffusion.schedules import step_quota
from dare_core.diffusion.selection import Select, select
from dare_core.errors import NonFiniteError, PluginError
from dare_core.interfaces import ModelAdapter
from dare_core.types import Address, AttentionLayout, DecodingSettings, EosRule, ModelFacts, Snapshots


@dataclass(frozen=True, kw_only=True)
class DenoiseResult:
    """Decoded rows in canonical form, and how they came about.

    Attributes:
        tokens: [B,L] int64 prompt, response, padding.
        prompt: [B,L] bool.
        response: [B,L] bool. Full layout: all new tokens; what an end token kept from being decoded was seen as
            masks, is filled with the end token and has commit step -1. Block layout: what was decoded.
        commit_step: [B,L] int64 forward that committed the token, from 0; -1 = none.
        logp: [B,L] float64 log-probability at commit (temperature 1, after guidance and suppression); 0 elsewhere.
        forwards: [B] int64 forwards each row took part in.
        stopped: [B] bool decoding ended early at an end token.
        layout: how rows attended.
        snapshots: states of every forward, ordered by row and forward, if asked for.
    """

    tokens: Tensor
    prompt: Tensor
    response: Tensor
    commit_step: Tensor
    logp: Tensor
    forwards: Tensor
    stopped: Tensor
    layout: AttentionLayout
    snapshots: Snapshots | None = None

    @property
    def confidence(self) -> Tensor:
        """[B,L] probability of each token when it was committed; 0 elsewhere."""
        return self.logp.exp() * (self.commit_step >= 0)


def decoding_layout(facts: ModelFacts, settings: DecodingSettings) -> AttentionLayout:
    """How rows attend while decoding: the model's layout, with the protocol's block length."""
    if facts.layout.kind == "full":
        return facts.layout
    return AttentionLayout("block", settings.block_length, facts.layout.origin)


@torch.no_grad()
def denoise(
    adapter: ModelAdapter,
    prompts: Sequence[Tensor | Sequence[int]],
    settings: DecodingSettings,
    address: Address,
    sample_ids: Sequence[int] | Tensor,
    *,
    sampler: Sampler = "categorical",
    ties: Ties = "exact",
    noise: Draws | None = None,
    snapshots: bool = False,
    rows_per_batch: int | None = None,
    device: torch.device | None = None,
) -> DenoiseResult:
    """Decode one response per prompt. Changes nothing outside; the adapter should be in evaluation mode.

    Args:
        adapter: the model.
        prompts: B token id sequences, without padding.
        settings: the protocol.
        address: of the random draws.
        sample_ids: [B] ids that address each row's draws.
        sampler: how tokens are drawn at temperature > 0.
        ties: ``exact`` confidences or ``published`` ones, which compare rounded probabilities.
        noise: where random numbers come from; the address by default.
        snapshots: record inputs, proposals and their probabilities of every forward, at all masked positions.
        rows_per_batch: rows denoised together; None = all.
        device: where the model's inputs live; None = where its first parameter lives.

    Raises:
        UserError: unknown selection rule or option.
        NonFiniteError: a logit is NaN or infinite; names sample and forward.
        PluginError: a selection rule committed nothing.
    """
    facts, rule = adapter.facts, find_rule(settings.selection)
    where = device if device is not None else next(adapter.module.parameters()).device
    layout = decoding_layout(facts, settings)
    canvas = masked_canvas(prompts, sample_ids, facts, settings, layout, where)
    draws = noise if noise is not None else AddressedDraws(address)
    loop = _Loop(adapter, settings, layout, canvas, _Recorder(snapshots))
    propose = proposer(facts, settings, rule, draws, sampler=sampler, ties=ties, device=where)
    choose = select(rule, ties)
    waiting = min(rows_per_batch or len(prompts), len(prompts))
    active = torch.arange(waiting, device=where)
    while len(active):
        scored, logits = loop.score(active)
        proposals = propose(logits, loop.places(active, scored))
        loop.commit(active, scored, proposals, choose)
        done = canvas.finished(active)
        leaving = int(done.sum())
        if leaving:
            upto = min(waiting + leaving, len(prompts))
            active = torch.cat([active[~done], torch.arange(waiting, upto, device=where)])
            waiting = upto
    return loop.result()


class _Recorder:
    """Collects snapshots, or nothing."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []

    def add(self, rows: Tensor, step: Tensor, inputs: Tensor, scored: Tensor, proposals: Proposals) -> None:
        if not self.on:
            return
        predicted = inputs.masked_scatter(scored, proposals.token)
        confidence = torch.zeros(inputs.shape, dtype=torch.float64, device=inputs.device)
        confidence = confidence.masked_scatter(scored, proposals.logp.exp())
        self._parts.append((inputs, predicted, confidence, rows, step.clone()))

    def snapshots(self) -> Snapshots | None:
        if not self._parts:
            return None
        inputs, predicted, confidence, row, step = (torch.cat(part) for part in zip(*self._parts, strict=True))
        order = (row * (int(step.max()) + 1) + step).argsort()
        return Snapshots(
            inputs=inputs[order],
            predicted=predicted[order],
            confidence=confidence[order],
            row=row[order],
            step=step[order],
        )


@dataclass
class _Loop:
    """The verbs of one step, on the active rows [R] of the canvas."""

    adapter: ModelAdapter
    settings: DecodingSettings
    layout: AttentionLayout
    canvas: Canvas
    recorder: _Recorder

    def score(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """Positions to score [R,L] (M in all) and their logits [M,V]."""
        canvas = self.canvas
        tokens, valid = canvas.tokens[active], canvas.valid(active)
        # Snapshots hold guesses of later blocks as well, where the model sees them.
        whole = self.recorder.on and self.layout.kind == "full"
        open_to = canvas.in_response(active) if whole else canvas.in_block(active)
        scored = open_to & (canvas.commit_step[active] < 0)
        prompt_length = canvas.prompt_length[active]
        weight = self.settings.guidance
        if not weight:
            return scored, self._logits(tokens, valid, scored, prompt_length)
        in_prompt = canvas.column < prompt_length[:, None]
        blind = tokens.masked_fill(in_prompt, _mask_id(self.adapter.facts))
        both = (torch.cat(pair) for pair in ((tokens, blind), (valid, valid), (scored, scored), (prompt_length,) * 2))
        seeing, unseeing = self._logits(*both).chunk(2)
        return scored, unseeing + (weight + 1) * (seeing - unseeing)

    def _logits(self, tokens: Tensor, valid: Tensor, scored: Tensor, prompt_length: Tensor) -> Tensor:
        return self.adapter.logits(tokens, valid, scored, layout=self.layout, prompt_length=prompt_length)

    def places(self, active: Tensor, scored: Tensor) -> Places:
        """Where the M scored positions stand."""
        at, column = scored.nonzero(as_tuple=True)
        rows = active[at]
        canvas = self.canvas
        return Places(rows, canvas.sample[rows], canvas.forwards[rows], column - canvas.prompt_length[rows])

    def commit(self, active: Tensor, scored: Tensor, proposals: Proposals, choose: Select) -> None:
        """Write the chosen proposals and move the rows on."""
        canvas = self.canvas
        block, step, forward = canvas.in_block(active), canvas.step[active], canvas.forwards[active]
        open_in_block = scored & block
        confidence = _spread(scored, proposals.confidence, -torch.inf)
        size = block.sum(dim=1)
        steps = size.clamp(max=self.settings.steps_per_block)
        chosen = choose(confidence, open_in_block, step_quota(size, steps, step).clamp(min=1)) & open_in_block
        self._check(active, proposals, chosen, scored)
        tokens = canvas.tokens[active]
        self.recorder.add(active, forward, tokens, scored, proposals)
        logp = _spread(scored, proposals.logp, 0.0)
        decided = tokens.masked_scatter(scored, proposals.token).where(chosen, tokens)
        canvas.tokens[active] = decided
        canvas.logp[active] = logp.where(chosen, canvas.logp[active])
        canvas.commit_step[active] = forward[:, None].where(chosen, canvas.commit_step[active])
        canvas.forwards[active] = forward + 1
        ended = ~(open_in_block & ~chosen).any(dim=1)
        canvas.step[active] = (step + 1) * ~ended
        canvas.block[active] += ended.long()
        if self.settings.eos_rule is EosRule.STOP:
            ids = torch.tensor(self.adapter.facts.eos_ids, device=tokens.device)
            canvas.stopped[active] = ended & (torch.isin(decided, ids) & block).any(dim=1)

    def _check(self, active: Tensor, proposals: Proposals, chosen: Tensor, scored: Tensor) -> None:
        # One look at the device for both: every look waits for it.
        bad, idle = ~proposals.logp.isfinite(), ~chosen.any(dim=1)
        if not bool(bad.any() | idle.any()):
            return
        canvas = self.canvas
        if bool(bad.any()):
            at = active[scored.nonzero(as_tuple=True)[0][bad]][0]
            raise NonFiniteError(
                f"logits of sample {int(canvas.sample[at])} at denoising forward {int(canvas.forwards[at])} "
                "are NaN or infinite"
            )
        raise PluginError(f"selection rule {self.settings.selection.kind!r} committed no token at a step")

    def result(self) -> DenoiseResult:
        """The canvas in canonical form."""
        canvas, facts = self.canvas, self.adapter.facts
        everything = torch.arange(len(canvas.tokens), device=canvas.tokens.device)
        response = canvas.in_response(everything)
        undecided = response & (canvas.commit_step < 0)
        fill = facts.eos_ids[0] if self.layout.kind == "full" else facts.pad_id
        return DenoiseResult(
            tokens=canvas.tokens.masked_fill(undecided, fill),
            prompt=canvas.column < canvas.prompt_length[:, None],
            response=response if self.layout.kind == "full" else response & ~undecided,
            commit_step=canvas.commit_step,
            logp=canvas.logp,
            forwards=canvas.forwards,
            stopped=canvas.stopped,
            layout=self.layout,
            snapshots=self.recorder.snapshots(),
        )


def _spread(where: Tensor, values: Tensor, fill: float) -> Tensor:
    """[R,L] ``values`` [M] at the positions ``where`` [R,L], ``fill`` elsewhere."""
    return torch.full(where.shape, fill, dtype=values.dtype, device=values.device).masked_scatter(where, values)


def _mask_id(facts: ModelFacts) -> int:
    if facts.mask_id is None:
        raise ValueError(f"{facts.kind} has no mask token")
    return facts.mask_id
