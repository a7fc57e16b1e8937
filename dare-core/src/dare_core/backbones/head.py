"""The output head at scored positions only, in tiles of rows and vocabulary.

For hidden states h [M,H], head weight W [V,H] and temperature T: z = h W^T / T,
log p = z[target] - logsumexp(z), H = -sum_v p_v log p_v. Logits exist for one tile at a time: sums over the vocabulary
are gathered tile by tile against a running maximum, and the backward pass computes the tiles again instead of keeping
[M,V], but for those of the first rows, of a fixed size:

    d log p / dz_v = [v = target] - p_v            d H / dz_v = -p_v (log p_v + H)

(Milakov & Gimelshein 2018, arXiv:1805.02867, for the running sum; Wijmans et al. 2024, arXiv:2411.09009, for tiles.)
The product with W runs in the weight's dtype, or in autocast's, everything after it in float32 at least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

#: logits of a chunk with a soft cap; 2^26 float32 are 256 MiB
_CAPPED_ELEMENTS = 1 << 26

#: logits of one tile: on a processor what stays near it from one pass to the next, elsewhere 256 MiB of float32
_TILE = {"cpu": 1 << 22}
_OTHER_TILE = 1 << 26
#: exponentials that are kept for the backward pass, 256 MiB of float32
KEPT = 1 << 26
#: fewer vocabulary entries make slow products
_ENTRIES = 2048


class TargetScores(NamedTuple):
    """Of M targets: [M] log-probability and entropy (nats), and [M] bool whether each is the most probable token.
    Entropy and correctness are None unless asked for."""

    logp: Tensor
    entropy: Tensor | None
    correct: Tensor | None


def project(hidden: Tensor, weight: Tensor, softcap: float | None = None) -> Tensor:
    """[M,H], [V,H] -> [M,V] logits in float32 at least; with a soft cap c they lie in (-c, c)."""
    logits = hidden.to(weight.dtype) @ weight.t()
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


def target_logp(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    tile: tuple[int, int] | None = None,
    softcap: float | None = None,
) -> TargetScores:
    """Log-probability of each target; if asked for, the entropy of its distribution and whether it is its mode.

    Args:
        hidden: [M,H] normalised hidden states that predict the targets.
        weight: [V,H] head.
        targets: [M] int64.
        temperature: logits are divided by it.
        entropy: also return entropy and correctness.
        tile: rows and vocabulary entries computed together; None = by memory. Changes results by rounding at most.
        softcap: see :func:`project`; then computed in chunks of rows.

    Returns:
        Scores whose log-probabilities and entropies are differentiable once in ``hidden`` and ``weight``.
    """
    if softcap is not None:
        return capped_scores(hidden, weight, targets, temperature=temperature, entropy=entropy, softcap=softcap)
    kind = hidden.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    with torch.autocast(kind, enabled=False):
        logp, spread, correct = _TargetLogp.apply(  # type: ignore[no-untyped-call]
            hidden, weight, targets, temperature, entropy, _Tiles.of(hidden, weight, tile, autocast, entropy)
        )
    return TargetScores(logp, spread if entropy else None, correct if entropy else None)


@dataclass(frozen=True)
class _Tiles:
    """How [M,V] logits are cut.

    Attributes:
        rows: of a tile.
        entries: of a tile.
        kept: rows, from the first, whose exponentials the backward pass finds.
        product: dtype of the product with the weight.
        wide: dtype of everything after it.
    """

    rows: int
    entries: int
    kept: int
    product: torch.dtype
    wide: torch.dtype

    @classmethod
    def of(
        cls, hidden: Tensor, weight: Tensor, tile: tuple[int, int] | None, product: torch.dtype, entropy: bool
    ) -> _Tiles:
        limit = _TILE.get(hidden.device.type, _OTHER_TILE)
        entries = max(_ENTRIES, limit // max(1, len(hidden)))
        rows, entries = tile or (max(1, limit // entries), entries)
        # An entropy's gradient needs the logits, which an exponential that is 0 has lost.
        trains = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad) and not entropy
        kept = min(len(hidden), KEPT // len(weight)) if trains else 0
        return cls(rows, entries, kept, product, torch.promote_types(weight.dtype, torch.float32))

    def of_rows(self, count: int) -> Iterator[slice]:
        for begin, end in ((0, self.kept), (self.kept, count)):
            yield from (slice(start, min(start + self.rows, end)) for start in range(begin, end, self.rows))

    def of_entries(self, count: int) -> Iterator[slice]:
        return (slice(start, min(start + self.entries, count)) for start in range(0, count, self.entries))

    def logits(self, hidden: Tensor, weight: Tensor, temperature: float, room: Tensor) -> Tensor:
        """[R,E] logits of a tile, in ``room`` [R * E at least] where dtypes allow."""
        shape = (len(hidden), len(weight))
        tile = room[: shape[0] * shape[1]].view(shape)
        if self.product == self.wide:
            torch.mm(hidden, weight.t(), out=tile)
        else:
            tile.copy_(hidden @ weight.to(self.product).t())
        return tile if temperature == 1 else tile.div_(temperature)

    def room(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """A buffer for one tile."""
        size = min(self.rows, len(hidden)) * min(self.entries, len(weight))
        return torch.empty(size, dtype=self.wide, device=hidden.device)


@dataclass
class _Running:
    """Sums over the vocabulary of R rows, relative to the largest logit so far.

    Attributes:
        top: [R] that logit.
        mass: [R] sum of exp(z - top).
        moment: [R] sum of exp(z - top) (z - top), where entropy is asked for.
        own: [R] the target's logit.
        best: [R] the first entry with the largest logit, where entropy is asked for.
    """

    top: Tensor
    mass: Tensor
    moment: Tensor
    own: Tensor
    best: Tensor

    @classmethod
    def start(cls, rows: int, like: Tensor) -> _Running:
        zeros = torch.zeros(rows, dtype=like.dtype, device=like.device)
        top = torch.full_like(zeros, torch.finfo(like.dtype).min)
        return cls(top, zeros, zeros, zeros, torch.zeros_like(zeros, dtype=torch.int64))

    def add(self, logits: Tensor, targets: Tensor, start: int, entropy: bool) -> None:
        """Take in a tile of logits [R,E] whose first entry is ``start``; overwrites the tile."""
        inside, here = _place(targets, start, logits.shape[1])
        self.own = torch.where(here, logits.gather(1, inside[:, None])[:, 0], self.own)
        if entropy:
            high, index = logits.max(dim=1)
            self.best = torch.where(high > self.top, index + start, self.best)
        else:
            high = logits.amax(dim=1)
        top = torch.maximum(self.top, high)
        shrink = (self.top - top).exp()
        apart = logits.sub_(top[:, None])
        if entropy:
            mass = apart.exp()
            moved = self.moment + self.mass * (self.top - top)
            self.moment = moved * shrink + (mass * apart).sum(dim=1)
        else:
            mass = apart.exp_()
        self.mass = self.mass * shrink + mass.sum(dim=1)
        self.top = top


def _place(targets: Tensor, start: int, entries: int) -> tuple[Tensor, Tensor]:
    """[R] place of each target within a tile, and [R] bool whether it is there."""
    inside = targets - start
    return inside.clamp(0, entries - 1), (inside >= 0) & (inside < entries)


class _TargetLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, entropy: bool, tiles: _Tiles
    ) -> tuple[Tensor, Tensor, Tensor]:
        logp = torch.empty(targets.shape, dtype=tiles.wide, device=hidden.device)
        total, spread = torch.empty_like(logp), torch.zeros_like(logp)
        correct = torch.zeros_like(targets, dtype=torch.bool)
        room, kept = tiles.room(hidden, weight), []
        for part in tiles.of_rows(len(targets)):
            states = hidden[part].to(tiles.product)
            sums = _Running.start(len(states), logp)
            for entries in tiles.of_entries(len(weight)):
                keep = part.start < tiles.kept
                place = tiles.room(states, weight[entries]) if keep else room
                logits = tiles.logits(states, weight[entries], temperature, place)
                sums.add(logits, targets[part], entries.start, entropy)
                kept += [logits, sums.top] if keep else []
            log_mass = sums.mass.log()
            logp[part] = sums.own - sums.top - log_mass
            total[part] = sums.top + log_mass
            if entropy:
                spread[part] = log_mass - sums.moment / sums.mass
                correct[part] = sums.best == targets[part]
        ctx.save_for_backward(hidden, weight, targets, total, spread, *kept)
        ctx.temperature, ctx.tiles, ctx.entropy = temperature, tiles, entropy
        ctx.mark_non_differentiable(*((correct,) if entropy else (spread, correct)))
        return logp, spread, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp: Tensor, grad_spread: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, total, spread, *kept = ctx.saved_tensors
        tiles: _Tiles = ctx.tiles
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        # Summed over tiles in float32, as one matrix product over everything would be.
        grad_hidden = torch.zeros_like(hidden, dtype=tiles.wide) if wants_hidden else None
        grad_weight = torch.empty_like(weight, dtype=tiles.wide) if wants_weight and len(targets) else None
        room, found = tiles.room(hidden, weight), iter(zip(kept[::2], kept[1::2], strict=True))
        for part in tiles.of_rows(len(targets)):
            states = hidden[part].to(tiles.product)
            for entries in tiles.of_entries(len(weight)):
                if part.start < tiles.kept:
                    mass, top = next(found)
                    scale = (top - total[part]).exp() * -grad_logp[part]
                    grad = torch.mul(mass, scale[:, None], out=room[: mass.numel()].view(mass.shape))
                else:
                    logits = tiles.logits(states, weight[entries], ctx.temperature, room)
                    log_all = logits.sub_(total[part, None])
                    inner = grad_logp[part, None]
                    grad = log_all.exp() if ctx.entropy else log_all.exp_()
                    if ctx.entropy:
                        inner = log_all.add_(spread[part, None]).mul_(grad_spread[part, None]).add_(inner)
                    grad.mul_(-inner)
                inside, here = _place(targets[part], entries.start, grad.shape[1])
                grad.scatter_add_(1, inside[:, None], (grad_logp[part] * here)[:, None])
                if ctx.temperature != 1:
                    grad.div_(ctx.temperature)
                grad = grad.to(tiles.product)
                if grad_hidden is not None:
                    _add_product(grad_hidden[part], grad, weight[entries].to(tiles.product))
                if grad_weight is not None:
                    _add_product(grad_weight[entries], grad.t(), states, fresh=part.start == 0)
        if wants_weight and grad_weight is None:
            grad_weight = torch.zeros_like(weight)
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            *(None,) * 4,
        )


def _add_product(total: Tensor, left: Tensor, right: Tensor, fresh: bool = False) -> None:
    """Add a product to ``total``, or put it there."""
    if left.dtype != total.dtype:
        product = left @ right
        total.copy_(product) if fresh else total.add_(product)
    elif fresh:
        torch.mm(left, right, out=total)
    else:
        total.addmm_(left, right)


def capped_scores(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, temperature: float, entropy: bool, softcap: float
) -> TargetScores:
    """:func:`target_logp` of softly capped logits (Gemma Team 2024, arXiv:2408.00118), z = c tanh(h W^T / c) / T.

    Chunks of rows; the backward pass computes their logits again.
    """

    def scored(states: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_all = (project(states, weight, softcap) / temperature).log_softmax(dim=-1)
        spread = -(log_all.exp() * log_all).sum(dim=-1) if entropy else log_all.new_zeros(len(chosen))
        return log_all.gather(1, chosen[:, None])[:, 0], spread, log_all.argmax(dim=-1) == chosen

    size = max(1, _CAPPED_ELEMENTS // len(weight))
    spans = [slice(start, start + size) for start in range(0, max(1, len(targets)), size)]
    parts = [checkpoint(scored, hidden[span], targets[span], use_reentrant=False) for span in spans]
    logp, spread, correct = (torch.cat(column) for column in zip(*parts, strict=True))
    return TargetScores(logp, spread if entropy else None, correct if entropy else None)
