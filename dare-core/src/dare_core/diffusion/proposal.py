"""From logits to one proposal per position: token, log-probability and confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_core.diffusion.confidence import (
    Ties,
    entropy_confidence,
    log_odds,
    log_probability,
    margin_confidence,
    scaled_confidence,
    token_confidence,
)
from dare_core.diffusion.draws import Draws, Places
from dare_core.diffusion.rules import Rule
from dare_core.diffusion.sampling import Sampler, categorical, filter_logits, gumbel_scores
from dare_core.diffusion.schedules import end_factor
from dare_core.diffusion.vocabulary import best_token
from dare_core.types import DecodingSettings, EosRule, ModelFacts

# Logits that are worked on together: on a processor, what stays in its cache from one pass to the next.
_CHUNK = {"cpu": 1 << 18}
_OTHER_CHUNK = 1 << 26


@dataclass(frozen=True)
class Proposals:
    """Proposals at M positions.

    Attributes:
        token: [M] int64, never the mask token nor an unused row of the output head.
        logp: [M] float64 log-probability at temperature 1, after guidance and logit suppression.
        confidence: [M] float64 what the selection rule ranks.
    """

    token: Tensor
    logp: Tensor
    confidence: Tensor


@dataclass(frozen=True, kw_only=True)
class Proposer:
    """How proposals are made in one call of the decoder.

    Attributes:
        settings: the protocol.
        rule: selection rule, options applied.
        draws: random numbers.
        sampler: ``categorical`` or ``gumbel``.
        ties: form of confidences.
        never: ids that are never proposed. They stay in the softmax, of the model's distribution as of the one
            sampled from, as they do when the policy is scored.
        suppressed: ids whose logits are -inf.
        unsure: ids that commit last.
        ends: ids that end a response.
    """

    settings: DecodingSettings
    rule: Rule
    draws: Draws
    sampler: Sampler
    ties: Ties
    never: Tensor
    suppressed: Tensor
    unsure: Tensor
    ends: Tensor

    def __call__(self, logits: Tensor, places: Places) -> Proposals:
        """Proposals for ``logits`` [M,V] at ``places``; deterministic given the draws, position by position."""
        size = max(1, _CHUNK.get(logits.device.type, _OTHER_CHUNK) // logits.shape[1])
        spans = [slice(start, start + size) for start in range(0, max(1, len(logits)), size)]
        parts = [self._propose(logits[span], places[span]) for span in spans]
        return Proposals(
            token=torch.cat([part.token for part in parts]),
            logp=torch.cat([part.logp for part in parts]),
            confidence=torch.cat([part.confidence for part in parts]),
        )

    def _propose(self, logits: Tensor, places: Places) -> Proposals:
        logits = _excluding(logits, self.suppressed)
        sampling = self._sampling_logits(logits)
        token = self._choose(logits, self._proposable(sampling, logits), places)
        odds = log_odds(logits, token)
        base = sampling if self.rule.distribution == "sampling" else logits
        confidence = self._confidence(base, token, odds, places)
        return Proposals(token=token, logp=log_probability(odds), confidence=confidence)

    def _proposable(self, sampling: Tensor, logits: Tensor) -> Tensor:
        """``sampling`` [M,V] without what is never proposed; where filters left nothing else, the likeliest token."""
        allowed = _excluding(sampling, self.never)
        if sampling is logits or not len(self.never):
            return allowed
        empty = allowed.amax(dim=1) == -torch.inf
        if bool(empty.any()):
            best = _excluding(logits[empty], self.never).argmax(dim=1)
            allowed[empty, best] = 0.0
        return allowed

    def _sampling_logits(self, logits: Tensor) -> Tensor:
        """[M,V]: temperature (1 where it is 0) and filters applied; float64 with filters."""
        settings = self.settings
        warm = logits
        if settings.temperature not in (0, 1):
            # Differences first: a quotient of a small temperature may be too large for its dtype.
            warm = (logits - logits.amax(dim=1, keepdim=True)).div_(settings.temperature)
        if settings.top_p >= 1 and not settings.top_k and not settings.min_p:
            return warm
        return filter_logits(
            warm,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
        )

    def _choose(self, logits: Tensor, sampling: Tensor, places: Places) -> Tensor:
        temperature = self.settings.temperature
        if temperature == 0:
            return best_token(sampling)
        if self.sampler == "gumbel":
            noise = self.draws.gumbel(places, logits.shape[1])
            kept = logits.to(torch.float64).masked_fill(sampling == -torch.inf, -torch.inf)
            return gumbel_scores(kept, noise, temperature).argmax(dim=1)
        return categorical(sampling, self.draws.token(places))

    def _confidence(self, logits: Tensor, token: Tensor, odds: Tensor, places: Places) -> Tensor:
        if self.rule.confidence == "random":
            confidence = self.draws.selection(places)
        elif self.rule.confidence == "position":
            confidence = -places.offset.to(torch.float64)
        else:
            confidence = self._model_confidence(_excluding(logits, self.unsure), token, odds)
        if self.rule.end_floor < 1:
            factor = end_factor(self.rule.end_floor, self.settings, places.forward)
            factor = torch.where(torch.isin(token, self.ends), factor, 1.0)
            confidence = scaled_confidence(confidence, factor, self.ties)
        if self.rule.order_temperature:
            # Gumbel-top-k: the k largest are a draw of k without replacement (Kool et al., arXiv 1903.06059).
            noise = -torch.log(-torch.log(self.draws.selection(places)))
            confidence = confidence / self.rule.order_temperature + noise
        if len(self.unsure):
            confidence = confidence.masked_fill(torch.isin(token, self.unsure), -torch.inf)
        return confidence

    def _model_confidence(self, logits: Tensor, token: Tensor, odds: Tensor) -> Tensor:
        # A temperature over confidences is one over plain probabilities, margins and entropies.
        ties = "published" if self.rule.order_temperature else self.ties
        if self.rule.confidence == "margin":
            return margin_confidence(logits, ties)
        if self.rule.confidence == "entropy":
            return entropy_confidence(logits, ties)
        if ties == "exact" and self.rule.distribution == "model" and not len(self.unsure):
            return odds
        return token_confidence(logits, token, ties)


def proposer(
    facts: ModelFacts,
    settings: DecodingSettings,
    rule: Rule,
    draws: Draws,
    *,
    sampler: Sampler,
    ties: Ties,
    device: torch.device,
) -> Proposer:
    """The proposer for a model: what it never proposes, and what the end rule suppresses."""
    never = [] if facts.mask_id is None else [facts.mask_id]
    if facts.head_rows_unused is not None:
        never += range(facts.head_rows_unused, facts.vocab_size)
    turn = [facts.extra_ids["eot"]] if "eot" in facts.extra_ids else []
    # LLaDA's logit suppression leaves the end of a turn alone; its confidence suppression holds back both.
    ends = [token for token in facts.eos_ids if token not in turn] or list(facts.eos_ids)
    unsure = [*facts.eos_ids, *turn]
    return Proposer(
        settings=settings,
        rule=rule,
        draws=draws,
        sampler=sampler,
        ties=ties,
        never=_ids(never, device),
        suppressed=_ids(ends if settings.eos_rule is EosRule.SUPPRESS else [], device),
        unsure=_ids(unsure if settings.eos_rule is EosRule.SUPPRESS_CONFIDENCE else [], device),
        ends=_ids(facts.eos_ids, device),
    )


def _ids(ids: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(sorted(set(ids)), dtype=torch.int64, device=device)


def _excluding(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.index_fill(1, ids, -torch.inf) if len(ids) else logits
