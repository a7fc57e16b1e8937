"""The denoising loop of masked and block models: block by block from left to right, surest tokens first.

LLaDA's semi-autoregressive sampler (Nie et al. 2025, arXiv:2502.09992, algorithm 5) and its likes: Dream's, SDAR's
and LLaDA2's samplers are other settings of the same loop. Per block of n masked tokens and S steps, a schedule says
how many tokens a step commits, and a selection rule which ones; rules that edit replace committed tokens of the block
as well. Each forward sees the canvas as the model's layout allows, and only positions that may change are scored.
Models of uniform noise have steps of their own (:mod:`dare_core.diffusion.renoise`) in the same run of rows.
Block models with an exact key-value cache compute finished blocks and prompts once.

Choices left open: the mask token is never proposed but stays in the softmax; a block shorter than S takes one
step per token; classifier-free guidance is z = u + (w + 1)(c - u), where u sees the prompt replaced by masks,
counts as one forward and is computed without cache; a row's random numbers are addressed by its sample id, forward
and position, so that a row equals the row decoded alone; quotas count each row's own masks. Rows that are done leave
the batch and waiting ones enter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from dare_core.diffusion.canvas import Canvas, blank_canvas
from dare_core.diffusion.confidence import Ties
from dare_core.diffusion.draws import AddressedDraws, Draws
from dare_core.diffusion.forwards import OpenForwards, RowForwards
from dare_core.diffusion.loop import Loop
from dare_core.diffusion.prefixes import CachedRows
from dare_core.diffusion.proposal import proposer
from dare_core.diffusion.recording import Recorder
from dare_core.diffusion.renoise import RenoisingLoop, refuse_masked_options
from dare_core.diffusion.rules import Rule, find_rule
from dare_core.diffusion.sampling import Sampler
from dare_core.errors import Problem, UserError
from dare_core.interfaces import ModelAdapter
from dare_core.types import Address, AttentionLayout, DecodingSettings, Edits, ModelFacts, Snapshots, Watch


@dataclass(frozen=True, kw_only=True)
class DenoiseResult:
    """Decoded rows in canonical form, and how they came about.

    Attributes:
        tokens: [B,L] int64 prompt, response, padding.
        prompt: [B,L] bool.
        response: [B,L] bool. Full layout: everything to decode. Block layout: the blocks that were begun, each
            whole. What an end token kept from being decoded there was seen as masks, is filled with the end token
            and has commit step -1.
        asked: [B,L] bool the response's first ``new_tokens``; where whole blocks are decoded, more may follow.
        commit_step: [B,L] int64 forward that first committed a token, from 0; -1 = none.
        logp: [B,L] float64 log-probability of that token then (temperature 1, after guidance and suppression); 0
            elsewhere.
        forwards: [B] int64 forwards each row took part in.
        stopped: [B] bool decoding ended early at an end token.
        layout: how rows attended.
        snapshots: states of every forward, ordered by row and forward, if asked for.
        edits: replaced tokens, where the rule edits.
        cached: a key-value cache was used.
        replayable: what every forward saw follows from tokens and commit steps.
    """

    tokens: Tensor
    prompt: Tensor
    response: Tensor
    asked: Tensor
    commit_step: Tensor
    logp: Tensor
    forwards: Tensor
    stopped: Tensor
    layout: AttentionLayout
    snapshots: Snapshots | None = None
    edits: Edits | None = None
    cached: bool = False
    replayable: bool = True

    @property
    def confidence(self) -> Tensor:
        """[B,L] probability of each token when a token was first committed there; 0 elsewhere."""
        return self.logp.exp() * (self.commit_step >= 0)


def decoding_layout(facts: ModelFacts, settings: DecodingSettings) -> AttentionLayout:
    """How rows attend while decoding: the model's layout, with the protocol's block length."""
    if facts.layout.kind == "full":
        return facts.layout
    return replace(facts.layout, block_length=settings.block_length)


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
    cache: bool = True,
    forwards: OpenForwards | None = None,
    watch: Watch | None = None,
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
        cache: use the adapter's exact key-value cache, if it has one.
        forwards: how rows are computed instead, such as against an approximate cache; not with guidance or snapshots.
        watch: called after every forward with the rows as they stand; changes nothing.
        device: where the model's inputs live; None = where its first parameter lives.

    Raises:
        UserError: unknown selection rule or option, or one for the other kind of noise.
        NonFiniteError: a logit is NaN or infinite; names sample and forward.
        PluginError: a selection rule committed nothing.
        ValueError: forwards of one's own with guidance or snapshots.
    """
    _refuse_partial_rows(settings, snapshots, forwards)
    facts, rule = adapter.facts, _rule_for(adapter.facts, settings)
    where = device if device is not None else next(adapter.module.parameters()).device
    layout = decoding_layout(facts, settings)
    canvas = blank_canvas(prompts, sample_ids, facts, settings, layout, where)
    draws = noise if noise is not None else AddressedDraws(address)
    together = min(rows_per_batch or len(prompts), len(prompts))
    exact = _cached_rows(adapter, canvas, layout, together) if cache and not settings.guidance else None
    recorder = Recorder(snapshots=snapshots, edits=rule.edits)
    if facts.noise == "uniform":
        refuse_masked_options(settings, snapshots=snapshots, forwards=forwards is not None)
        renoising = RenoisingLoop(adapter, settings, rule, layout, canvas, draws, exact, watch)
        _run(canvas, exact, together, renoising.step)
        return _result(facts, settings, layout, canvas, recorder, exact, replayable=False)
    cached: RowForwards | None = exact if forwards is None else forwards(canvas, layout, together)
    loop = Loop(adapter, settings, rule, ties, layout, canvas, recorder, cached, watch)
    propose = proposer(facts, settings, rule, draws, sampler=sampler, ties=ties, device=where)
    _run(canvas, cached, together, partial(loop.step, propose=propose))
    return _result(facts, settings, layout, canvas, recorder, cached, replayable=not rule.edits)


def _refuse_partial_rows(settings: DecodingSettings, snapshots: bool, forwards: OpenForwards | None) -> None:
    if forwards is not None and (settings.guidance or snapshots):
        raise ValueError("guidance and snapshots need forwards of whole rows")


def _rule_for(facts: ModelFacts, settings: DecodingSettings) -> Rule:
    rule = find_rule(settings.selection)
    if rule.noise != facts.noise:
        message = f"{rule.kind!r} is for models of {rule.noise} noise, and {facts.kind!r} is one of {facts.noise} noise"
        raise UserError(Problem(message, path="rollout.selection.kind"))
    return rule


def _run(canvas: Canvas, cached: RowForwards | None, places: int, step: Callable[[Tensor], None]) -> None:
    """Decode all rows of the canvas, ``places`` at a time."""
    total = len(canvas.tokens)
    active = torch.arange(places, device=canvas.tokens.device)
    if cached is not None:
        cached.enter(active)
    waiting = places
    while len(active):
        step(active)
        done = canvas.finished(active)
        leaving = int(done.sum())
        if leaving:
            upto = min(waiting + leaving, total)
            entering = torch.arange(waiting, upto, device=active.device)
            if cached is not None:
                cached.leave(active[done])
                cached.enter(entering)
            active = torch.cat([active[~done], entering])
            waiting = upto


def _cached_rows(adapter: ModelAdapter, canvas: Canvas, layout: AttentionLayout, rows: int) -> CachedRows | None:
    if layout.kind != "block" or not rows:
        return None
    cache = adapter.open_cache(rows, canvas.tokens.shape[1])
    return None if cache is None else CachedRows(cache, canvas, layout)


def _result(
    facts: ModelFacts,
    settings: DecodingSettings,
    layout: AttentionLayout,
    canvas: Canvas,
    recorder: Recorder,
    cached: RowForwards | None,
    *,
    replayable: bool,
) -> DenoiseResult:
    """The canvas in canonical form."""
    everything = torch.arange(len(canvas.tokens), device=canvas.tokens.device)
    response = canvas.in_response(everything)
    undecided = response & (canvas.commit_step < 0)
    tokens = canvas.tokens.masked_fill(undecided, facts.eos_ids[0])
    if layout.kind == "block":
        # A row that was stopped has left the block in which it was.
        begun = canvas.column < canvas.block_start(everything)[:, None]
        tokens = tokens.masked_fill(response & ~begun, facts.pad_id)
        response = response & begun
    return DenoiseResult(
        tokens=tokens,
        prompt=canvas.column < canvas.prompt_length[:, None],
        response=response,
        asked=response & (canvas.column < (canvas.prompt_length + settings.new_tokens)[:, None]),
        commit_step=canvas.commit_step,
        logp=canvas.logp,
        forwards=canvas.forwards,
        stopped=canvas.stopped,
        layout=layout,
        snapshots=recorder.snapshots(),
        edits=recorder.edits(tokens.device),
        cached=cached is not None,
        replayable=replayable,
    )
