"""SPG's estimates per token (Wang et al. 2025, "SPG: sandwiched policy gradient", arXiv:2510.09541).

With draws j, M_j the hidden tokens of the completion (up to and including the first end token, L of them),
t_j = |M_j| / L, l the log-probabilities and beta = ``power``::

    lower = mean_j mean_{i in M_j} l_ij
    a_i   = mean_j [i in M_j] exp(beta l_ij) / t_j,      upper = 1/beta mean over i with a_i > 0 of log a_i

``block-random`` hides a number of tokens, uniform between two shares, of one block of the completion and all that
follows it; earlier tokens and the prompt are hidden with a small probability. In every form all positions behind the
first end token are hidden and not scored. Hidden tokens of earlier and later blocks are scored too, as the authors do.

Both are per token. With ``random`` and no hidden context, L times the lower one has the ELBO as its mean; otherwise it
is a surrogate. The upper one is at least the lower one for one draw (by log(1/t)/beta) and in expectation, not for
several draws. Everything is computed from logarithms: a token of probability 0 gives an infinity, it is not dropped.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dare_algos_elbo.estimators.config import SpgEstimatorSection
from dare_algos_elbo.estimators.draws import Lines, targeted, weighted_sums
from dare_core.diffusion.corruption import bernoulli_mask, build_views
from dare_core.diffusion.counts import count_mask, ranks, uniform_counts
from dare_core.diffusion.seeds import uniforms
from dare_core.interfaces import LikelihoodEstimator, PlanContext
from dare_core.types import Estimate, Rows, Scores, Views


class Spg(LikelihoodEstimator):
    """``draws`` views per row; a lower and an upper estimate per row [B], in nats per token."""

    config: SpgEstimatorSection

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """Views ordered by (row, draw). Draws take different blocks as long as there are some."""
        rows = targeted(rows, "response", context.facts)
        lines = Lines.of(rows, self.config.draws, self.config.shared_by)
        address, width = context.address, rows.tokens.shape[1]
        total = self._blocks(rows.response)[lines.row]
        choice = uniforms(address.within("block"), lines.owner, lines.draw // total, int(total.max()))
        order = ranks(choice, torch.arange(choice.shape[1], device=total.device) < total[:, None])
        block = self.reached(rows, order.gather(1, (lines.draw % total)[:, None])[:, 0])
        size = self._candidates(rows, block).sum(dim=1)
        low = (size * self.config.least).floor().long().clamp(min=1)
        share = uniforms(address.within("count"), lines.owner, lines.draw, 1)[:, 0]
        count = low - 1 + uniform_counts(share, 1, (size * self.config.most).floor().long() - low + 1)
        return self.views(
            rows,
            context,
            block,
            count,
            uniforms(address, lines.owner, lines.draw, width),
            uniforms(address.within("context"), lines.owner, lines.draw, width),
        )

    def reached(self, rows: Rows, entry: Tensor) -> Tensor:
        """[N] block of each line from entries of permutations of a row's blocks, modulo those its completion has."""
        blocks = self._blocks(rows.completion).repeat_interleave(self.config.draws)
        return entry % blocks

    def views(
        self, rows: Rows, context: PlanContext, block: Tensor, count: Tensor, numbers: Tensor, noise: Tensor
    ) -> Views:
        """The plan for given blocks [N], counts [N], numbers [N,L], smallest hidden, and context noise [N,L]."""
        lines = Lines.of(rows, self.config.draws, self.config.shared_by)
        completion, response = rows.completion[lines.row], rows.response[lines.row]
        candidates = self._candidates(rows, block)
        partly = self.config.masking in ("block-random", "random")
        chosen = count_mask(numbers, count, candidates) if partly else candidates
        later = response & (self._block_of(response) > block[:, None])
        if self.config.masking in ("random", "all"):
            later = torch.zeros_like(later)
        before = rows.valid[lines.row] & ~candidates & ~later & ~(response & ~completion)
        hidden = chosen | later | (response & ~completion) | bernoulli_mask(noise, self.config.context_mask, before)
        scored = hidden & completion
        return build_views(
            rows,
            hidden,
            mask_id=context.facts.mask_id,
            layout=context.layout,
            row=lines.row,
            draw=lines.draw,
            scored=scored,
            weight=1 / scored.sum(dim=1, keepdim=True).clamp(min=1).to(torch.float64),
        )

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """Lower and upper [B]."""
        count, draws = len(rows), self.config.draws
        by_draw = weighted_sums(views, scores).view(count, draws)
        return Estimate(
            value=by_draw.mean(dim=1),
            upper=self._upper(views, scores, rows),
            per="row",
            bound="surrogate",
            mask=rows.completion.any(dim=1),
            draws=draws,
            stderr=by_draw.detach().std(dim=1) / draws**0.5 if draws > 1 else None,
        )

    def _upper(self, views: Views, scores: Scores, rows: Rows) -> Tensor:
        shape = (len(rows), self.config.draws, -1)
        power, length = self.config.power, rows.completion.sum(dim=1).clamp(min=1)
        share = views.scored.sum(dim=1) / length[views.row].to(torch.float64)
        logp = torch.where(views.scored, scores.logp, 0.0)
        terms = power * logp - share.clamp(min=1e-300).log()[:, None]
        scored = views.scored.view(shape)
        ever = scored.any(dim=1)
        # Columns that no draw scores hold finite numbers, so that their unused logarithm has a finite gradient.
        terms = torch.where(scored, terms.view(shape), torch.where(ever[:, None], -torch.inf, 0.0))
        log_mean = terms.logsumexp(dim=1) - math.log(self.config.draws)
        total = torch.where(ever, log_mean, 0.0).sum(dim=1)
        return total / ever.sum(dim=1).clamp(min=1) / power

    def _candidates(self, rows: Rows, block: Tensor) -> Tensor:
        """[N,L] bool the part of the completion that a draw hides by number."""
        completion = rows.completion.repeat_interleave(self.config.draws, dim=0)
        if self.config.masking in ("random", "all"):
            return completion
        return completion & (self._block_of(rows.response)[:, None] == block.view(len(rows), -1, 1)).flatten(0, 1)

    def _blocks(self, span: Tensor) -> Tensor:
        """[B] blocks that a span [B,L] of responses reaches into, at least 1."""
        return (-(-span.sum(dim=1) // self.config.block_length)).clamp(min=1)

    def _block_of(self, response: Tensor) -> Tensor:
        """[B,L] int64 block of each response position, counted from the response's start; -1 elsewhere."""
        place = response.long().cumsum(dim=1) - 1
        return torch.where(response, place.div(self.config.block_length, rounding_mode="floor"), -1)
