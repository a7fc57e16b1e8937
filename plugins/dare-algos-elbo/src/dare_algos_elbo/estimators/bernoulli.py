"""Bernoulli estimate of the ELBO (Sahoo et al. 2024, arXiv:2406.07524; LLaDA, arXiv:2502.09992, eq. 3-5).

One time t per row and draw, each response token hidden with probability 1 - alpha(t), its log-probability weighted
by w(t) = -alpha'(t) / (1 - alpha(t)) (t and 1/t for the linear schedule)::

    B(y) = mean over draws of  w(t) sum_{i hidden} log p(y_i | view),   t = low + (high - low) u

Prompt tokens are never hidden. With times in [low, 1] the expectation is that of the ELBO up to O(low): t has
density 1/(1 - low) there and the weight does not undo it. A draw that hides nothing contributes 0.

Options that published trainers use, and that leave the ELBO: other weights (``none``, and Dream's, arXiv:2508.15487:
``remaining``, ``cart``, a focal factor (1 - p)^gamma on each token, through which the gradient passes), a band of times
(LLaDA2, arXiv:2512.15745), ``redraws`` (SDAR, arXiv:2510.06303: a row without a hidden token is drawn again, and at
last one token is hidden), ``end_run_as_one``, ``crop``. ``complementary`` views keep the mean: the complement is hidden
with the share 1 - t and weighted accordingly; in random numbers it is the draw 1 - u, so these are antithetic pairs.

Models without a mask token see random tokens at hidden positions (:mod:`dare_core.diffusion.corruption`); the bound
holds for them too. ``score_kept`` adds the response's other tokens with weight 1, as those models are trained to tell
which tokens to keep; with ``weight: none`` this is the cross-entropy at every position, D3PM's auxiliary term
(arXiv:2107.03006, eq. 5).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from dare_algos_elbo.estimators.config import BernoulliSection
from dare_algos_elbo.estimators.draws import DrawEstimator, Lines, targeted
from dare_algos_elbo.estimators.token_weights import closing_run, focal_logp, neighbour_weights
from dare_core.diffusion.corruption import bernoulli_mask, build_views, times, view_noise
from dare_core.diffusion.counts import uniform_counts
from dare_core.diffusion.schedules import alpha, elbo_weight
from dare_core.diffusion.seeds import batch_uniforms, uniforms
from dare_core.interfaces import PlanContext
from dare_core.types import Address, Estimate, ModelFacts, Rows, Scores, Views
from dare_core.types.estimate import Bound


class Bernoulli(DrawEstimator):
    """``draws`` times per row; two views each if complementary."""

    config: BernoulliSection

    @property
    def bound(self) -> Bound:
        """``lower`` with the ELBO's weights over the whole range of times, up to the clamp."""
        c = self.config
        plain = c.weight == "elbo" and c.time_high == 1.0 and c.crop == "none" and c.focal_power is None
        plain = plain and not c.score_kept
        return "lower" if plain and not c.redraws and not c.end_run_as_one else "surrogate"

    @property
    def views_per_draw(self) -> int:
        """A mask, and its complement if asked for."""
        return 2 if self.config.complementary else 1

    def plan(self, rows: Rows, context: PlanContext) -> Views:
        """Views ordered by (row, draw)."""
        rows = targeted(rows, self.config.targets, context.facts)
        if self.config.crop != "none":
            pick, chance = batch_uniforms(context.address.within("crop"), 2, rows.tokens.device)
            if bool(chance < self.config.crop_chance):
                rows = cropped(rows, pick, self.config.crop)
        lines = Lines.of(rows, self.config.draws, self.config.shared_by)
        time, token = self._numbers(rows, lines, context.address, context.facts)
        return self.views(rows, context, time, token)

    def views(self, rows: Rows, context: PlanContext, time_uniform: Tensor, token_uniform: Tensor) -> Views:
        """The plan for given uniform numbers: ``time_uniform`` [N], ``token_uniform`` [N,L], N = rows x draws."""
        lines = Lines.of(rows, self.config.draws, self.config.shared_by)
        hidden, time = self._hidden(rows, lines, time_uniform, token_uniform, context.facts)
        pair, draw = self.views_per_draw, lines.draw
        if pair == 2:
            hidden = torch.stack([hidden, rows.response[lines.row] & ~hidden], dim=1).flatten(0, 1)
            # The complement of a linear mask is one of time 1 - t.
            time = torch.stack([time, (1 - time).clamp(min=self.config.time_low)], dim=1).flatten()
            draw = torch.stack([2 * draw, 2 * draw + 1], dim=1).flatten()
        row = lines.row.repeat_interleave(pair)
        weight = self._weight(time, hidden, rows.valid[row])
        scored = None
        if self.config.score_kept:
            weight, scored = torch.where(hidden, weight, 1.0), rows.response[row]
        owner = lines.owner.repeat_interleave(pair)
        return build_views(
            rows,
            hidden,
            mask_id=context.facts.mask_id,
            noise=view_noise(context.facts, context.address, owner, draw, hidden.shape[1]),
            layout=context.layout,
            row=row,
            draw=draw,
            scored=scored,
            weight=weight,
        )

    def reduce(self, views: Views, scores: Scores, rows: Rows) -> Estimate:
        """As the base's, on focal log-probabilities if asked for."""
        if self.config.focal_power is not None:
            counts = views.scored & (views.weight != 0)
            focal = focal_logp(torch.where(counts, scores.logp, -1.0), self.config.focal_power)
            scores = replace(scores, logp=self.config.focal_scale * focal)
        return super().reduce(views, scores, rows)

    def _weight(self, time: Tensor, hidden: Tensor, valid: Tensor) -> Tensor:
        """[N,1] or [N,L]."""
        kind = self.config.weight
        if kind == "cart":
            return neighbour_weights(hidden, valid, self.config.cart_decay)
        if kind == "elbo":
            return elbo_weight(self.config.schedule, time)[:, None]
        return (1 - time if kind == "remaining" else torch.ones_like(time))[:, None]

    def _hidden(
        self, rows: Rows, lines: Lines, time_uniform: Tensor, token_uniform: Tensor, facts: ModelFacts
    ) -> tuple[Tensor, Tensor]:
        """[N,L] bool hidden tokens, and [N] times."""
        time = times(time_uniform, self.config.time_low, self.config.time_high)
        if self.config.end_run_as_one:
            first = closing_run(rows, facts.eos_ids)[lines.row]
            token_uniform = token_uniform.gather(1, first)
        chance = 1 - alpha(self.config.schedule, time)[:, None]
        return bernoulli_mask(token_uniform, chance, rows.response[lines.row]), time

    def _numbers(self, rows: Rows, lines: Lines, address: Address, facts: ModelFacts) -> tuple[Tensor, Tensor]:
        """Uniform numbers [N] of times and [N,L] of tokens, redrawn where nothing would be hidden."""
        width = rows.tokens.shape[1]

        def drawn(at: Address) -> tuple[Tensor, Tensor]:
            time = uniforms(at.within("time"), lines.owner, lines.draw, 1)[:, 0]
            return time, uniforms(at, lines.owner, lines.draw, width)

        def empty() -> Tensor:
            return ~self._hidden(rows, lines, time, token, facts)[0].any(dim=1)

        time, token = drawn(address)
        for attempt in range(self.config.redraws):
            again, (new_time, new_token) = empty(), drawn(address.within(f"redraw-{attempt}"))
            time, token = torch.where(again, new_time, time), torch.where(again[:, None], new_token, token)
        if self.config.redraws:
            # The smallest number becomes 0, below any chance.
            least = token.masked_fill(~rows.response[lines.row], torch.inf).argmin(dim=1, keepdim=True)
            token = torch.where(empty()[:, None], token.scatter(1, least, 0.0), token)
        return time, token


def cropped(rows: Rows, uniform: Tensor, to: Literal["batch", "length"] = "batch") -> Rows:
    """The rows cut to a length that ``uniform`` (scalar, in [0, 1)) picks: that of a completion, by sample id, or one
    from 1 to the longest response."""
    if to == "batch":
        order = rows.sample_id.argsort()
        length = rows.completion[order[(uniform * len(rows)).long().clamp(max=len(rows) - 1)]].sum()
    else:
        length = uniform_counts(uniform, 1, rows.response.sum(dim=1).amax())
    offset = rows.response.long().cumsum(dim=1)
    kept = rows.response & (offset <= length)
    # Given turns behind the last kept token leave the row too.
    before_end = kept.flip(1).long().cumsum(dim=1).flip(1) > 0
    given = rows.prompt & (before_end | ~kept.any(dim=1, keepdim=True))
    return replace(rows, prompt=given, response=kept, completion=rows.completion & kept)
