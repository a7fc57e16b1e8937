"""The denoising loop of models of uniform noise: undecided positions hold random tokens, and nothing is kept.

DiffusionGemma's sampler, as transformers publishes it. A block starts as random tokens. At step i of S a forward gives
logits z, and with n = S - i steps left the block's distributions are those of z / t, t = cold + (hot - cold) n / S.
Positions are accepted by ascending entropy while the entropies of those before them sum to at most ``bound`` (Ben-Hamu
et al. 2025, arXiv:2505.24857): they take a token drawn from their distribution, all others a new random one. A block
ends after S steps, or once its likeliest tokens are those of the ``stable_steps`` forwards before and the mean entropy
lies below ``stop_entropy``; these likeliest tokens of the last forward become the text, not the canvas.

Choices left open: at temperature 0 accepted positions take their likeliest token, at others they are drawn from
z / (t temperature) after the filters, while entropies stay those of z / t; a random token is any id of the vocabulary;
an end token stops a row after its block, as the end rule says; rows' numbers are addressed as in
:mod:`dare_core.diffusion.denoise`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.diffusion.canvas import Canvas
from dare_core.diffusion.confidence import entropy, log_odds, log_probability
from dare_core.diffusion.corruption import random_tokens
from dare_core.diffusion.draws import Draws, Places
from dare_core.diffusion.prefixes import CachedRows
from dare_core.diffusion.rules import Rule
from dare_core.diffusion.sampling import categorical, filter_logits
from dare_core.diffusion.vocabulary import best_token
from dare_core.errors import NonFiniteError, Problem, UserError
from dare_core.interfaces import ModelAdapter
from dare_core.types import AttentionLayout, DecodingSettings, DenoisingStep, EosRule, Watch

# Logits that are worked on together; float32 copies of them are made.
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Guesses:
    """What a forward says of M positions.

    Attributes:
        token: [M] int64 drawn from the cooled distribution.
        best: [M] int64 its likeliest token.
        entropy: [M] float64 of the cooled distribution, in nats.
        logp: [M] float64 log-probability of ``best`` at temperature 1.
        condition: [M,H] what the next forward sees of it, where the model is self-conditioned.
    """

    token: Tensor
    best: Tensor
    entropy: Tensor
    logp: Tensor
    condition: Tensor | None


class RenoisingLoop:
    """One step of the loop, on the active rows [R] of the canvas.

    Args:
        adapter: the model.
        settings: the protocol.
        rule: for uniform noise, options applied.
        layout: how rows attend.
        canvas: the rows.
        draws: random numbers.
        cached: the rows against a key-value cache; None = every forward computes whole rows.
        watch: told of every forward.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        settings: DecodingSettings,
        rule: Rule,
        layout: AttentionLayout,
        canvas: Canvas,
        draws: Draws,
        cached: CachedRows | None,
        watch: Watch | None = None,
    ) -> None:
        self.adapter, self.settings, self.rule, self.layout = adapter, settings, rule, layout
        self.canvas, self.draws, self.cached, self.watch = canvas, draws, cached, watch
        self._guess = torch.full_like(canvas.tokens, -1)
        # Forwards before the last one that had the same likeliest tokens.
        self._streak = torch.zeros_like(canvas.block)
        self._condition: Tensor | None = None
        self._ends = torch.tensor(adapter.facts.eos_ids, device=canvas.tokens.device)

    def step(self, active: Tensor) -> None:
        """One forward of the rows ``active`` [R]."""
        canvas = self.canvas
        block = canvas.in_block(active)
        places = self._places(active, block)
        self._begin(active, block, places)
        logits = self._logits(active, block)
        left = self.settings.steps_per_block - canvas.step[active]
        share = left.to(torch.float64) / self.settings.steps_per_block
        warmth = self.rule.cold + (self.rule.hot - self.rule.cold) * share
        guesses = self._guesses(logits, warmth.repeat_interleave(block.sum(dim=1)), places)
        self._check(guesses, places)
        spread = torch.zeros(block.shape, dtype=torch.float64, device=block.device)
        spread = spread.masked_scatter(block, guesses.entropy)
        accepted = within_bound(spread, block, self.rule.bound)
        ended = self._ended(active, block, spread, guesses.best)
        self._write(active, block, accepted, ended, guesses, places)

    def _places(self, active: Tensor, block: Tensor) -> Places:
        at, column = block.nonzero(as_tuple=True)
        rows, canvas = active[at], self.canvas
        return Places(rows, canvas.sample[rows], canvas.forwards[rows], column - canvas.prompt_length[rows])

    def _random(self, uniform: Tensor) -> Tensor:
        return random_tokens(uniform, self.adapter.facts.vocab_size)

    def _begin(self, active: Tensor, block: Tensor, places: Places) -> None:
        """Blocks that have had no forward start as random tokens, without a guess."""
        canvas = self.canvas
        fresh = canvas.step[active] == 0
        if not bool(fresh.any()):
            return
        chosen = fresh.repeat_interleave(block.sum(dim=1))
        starting = block & fresh[:, None]
        tokens = canvas.tokens[active]
        canvas.tokens[active] = tokens.masked_scatter(starting, self._random(self.draws.start(places))[chosen])
        self._streak[active[fresh]] = 0
        if self._condition is not None:
            self._condition[active[fresh]] = 0

    def _logits(self, active: Tensor, block: Tensor) -> Tensor:
        canvas = self.canvas
        tokens, valid = canvas.tokens[active], canvas.valid(active)
        condition = None
        if self.layout.kind == "block":
            valid &= canvas.column < (canvas.block_start(active) + canvas.block_length)[:, None]
        if self._condition is not None:
            condition = self._condition[active][self._offset(active, block)]
        if self.cached is not None:
            return self.cached.logits(active, tokens, valid, block, condition)
        given = {} if condition is None else {"condition": condition}
        length = canvas.prompt_length[active]
        return self.adapter.logits(tokens, valid, block, layout=self.layout, prompt_length=length, **given)

    def _offset(self, active: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        """[M] row among ``active`` and place within its block, of each position of ``block``."""
        at, column = block.nonzero(as_tuple=True)
        return at, column - self.canvas.block_start(active)[at]

    def _guesses(self, logits: Tensor, warmth: Tensor, places: Places) -> Guesses:
        size = max(1, _CHUNK // logits.shape[1])
        spans = [slice(start, start + size) for start in range(0, max(1, len(logits)), size)]
        parts = [self._guessed(logits[span], warmth[span], places[span]) for span in spans]
        seen = [part.condition for part in parts if part.condition is not None]
        return Guesses(
            token=torch.cat([part.token for part in parts]),
            best=torch.cat([part.best for part in parts]),
            entropy=torch.cat([part.entropy for part in parts]),
            logp=torch.cat([part.logp for part in parts]),
            condition=torch.cat(seen) if seen else None,
        )

    def _guessed(self, logits: Tensor, warmth: Tensor, places: Places) -> Guesses:
        settings = self.settings
        if settings.eos_rule is EosRule.SUPPRESS:
            logits = logits.index_fill(1, self._ends, -torch.inf)
        cooled = logits / warmth.to(logits.dtype)[:, None]
        best = best_token(cooled)
        token = best
        if settings.temperature:
            sampling = cooled if settings.temperature == 1 else cooled / settings.temperature
            if settings.top_p < 1 or settings.top_k or settings.min_p:
                sampling = filter_logits(sampling, top_p=settings.top_p, top_k=settings.top_k, min_p=settings.min_p)
            token = categorical(sampling, self.draws.token(places))
        return Guesses(
            token=token,
            best=best,
            entropy=entropy(cooled),
            logp=log_probability(log_odds(logits, best)),
            condition=self.adapter.condition_on(cooled),
        )

    def _ended(self, active: Tensor, block: Tensor, spread: Tensor, best: Tensor) -> Tensor:
        """[R] bool rows whose block ends with this forward."""
        canvas, rule = self.canvas, self.rule
        last = self._guess[active]
        guess = last.masked_scatter(block, best)
        same = ((guess == last) | ~block).all(dim=1) & (canvas.step[active] > 0)
        self._streak[active] = (self._streak[active] + 1) * same
        self._guess[active] = guess
        sure = spread.sum(dim=1) / block.sum(dim=1).clamp(min=1) < rule.stop_entropy
        planned = canvas.step[active] + 1 >= self.settings.steps_per_block
        return planned | (sure & (self._streak[active] >= rule.stable_steps))

    def _write(
        self, active: Tensor, block: Tensor, accepted: Tensor, ended: Tensor, guesses: Guesses, places: Places
    ) -> None:
        """Accepted tokens and new noise, or the last guess where the block ends; then the rows move on."""
        canvas = self.canvas
        before, forward = canvas.tokens[active], canvas.forwards[active]
        random = self._random(self.draws.renewed(places))
        final = block & ended[:, None]
        mixed = torch.where(accepted[block], guesses.token, random)
        tokens = before.masked_scatter(block, torch.where(final[block], guesses.best, mixed))
        canvas.tokens[active] = tokens
        logp = torch.zeros(block.shape, dtype=torch.float64, device=block.device).masked_scatter(block, guesses.logp)
        canvas.logp[active] = logp.where(final, canvas.logp[active])
        canvas.commit_step[active] = forward[:, None].where(final, canvas.commit_step[active])
        if guesses.condition is not None:
            self._remember(active, block, guesses.condition)
        canvas.forwards[active] = forward + 1
        stopped = self._stopped(tokens, final)
        canvas.step[active] = (canvas.step[active] + 1) * ~ended
        canvas.block[active] += ended.long()
        canvas.stopped[active] = stopped
        if self.watch is not None:
            self.watch(self._seen(active, forward, block, accepted | final, logp))

    def _remember(self, active: Tensor, block: Tensor, condition: Tensor) -> None:
        canvas = self.canvas
        if self._condition is None:
            shape = (len(canvas.tokens), canvas.block_length, condition.shape[1])
            self._condition = torch.zeros(shape, dtype=condition.dtype, device=condition.device)
        at, offset = self._offset(active, block)
        self._condition[active[at], offset] = condition

    def _stopped(self, tokens: Tensor, final: Tensor) -> Tensor:
        """[R] bool rows that an end token of the block that ended stops."""
        if self.settings.eos_rule not in (EosRule.STOP, EosRule.STOP_EARLY):
            return torch.zeros_like(final[:, 0])
        return (torch.isin(tokens, self._ends) & final).any(dim=1)

    def _seen(self, active: Tensor, forward: Tensor, block: Tensor, taken: Tensor, logp: Tensor) -> DenoisingStep:
        """Likeliest tokens stand for what the block would become; those of accepted positions count as decided."""
        canvas = self.canvas
        decided = taken | (canvas.commit_step[active] >= 0)
        return DenoisingStep(
            row=active,
            forward=forward,
            tokens=self._guess[active].where(block, canvas.tokens[active]),
            response=canvas.in_response(active),
            decided=decided,
            changed=taken,
            probability=torch.where(block, logp, canvas.logp[active]).exp() * decided,
            finished=canvas.finished(active),
        )

    def _check(self, guesses: Guesses, places: Places) -> None:
        bad = ~(guesses.logp.isfinite() & guesses.entropy.isfinite())
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            raise NonFiniteError(
                f"logits of sample {int(places.sample[at])} at denoising forward {int(places.forward[at])} "
                "are NaN or infinite"
            )


def within_bound(spread: Tensor, block: Tensor, bound: float) -> Tensor:
    """Positions by ascending entropy, as long as the entropies before them sum to at most ``bound``.

    Args:
        spread: [R,L] float64 entropies in nats.
        block: [R,L] bool positions that count.
        bound: nats.

    Returns:
        [R,L] bool, the surest position of each block always among them; equal entropies: the lower position first.
    """
    ordered, order = spread.masked_fill(~block, torch.inf).sort(dim=1, stable=True)
    before = (ordered.cumsum(dim=1) - ordered).nan_to_num(nan=torch.inf)
    return torch.zeros_like(block).scatter(1, order, before <= bound) & block


def refuse_masked_options(settings: DecodingSettings, *, snapshots: bool, forwards: bool) -> None:
    """What has no meaning without a mask token.

    Raises:
        UserError: names each option.
    """
    named = {
        "rollout.guidance": bool(settings.guidance),
        "rollout.eos_rule": settings.eos_rule in (EosRule.SUPPRESS_CONFIDENCE, EosRule.STOP_EARLY),
    }
    problems = [
        Problem("not available for models without a mask token", path) for path, given in named.items() if given
    ]
    if forwards:
        problems.append(Problem("this backend needs a model with a mask token", "rollout.kind"))
    if snapshots:
        problems.append(Problem("snapshots of denoising steps need a model with a mask token", "rollout"))
    if problems:
        raise UserError(problems)
