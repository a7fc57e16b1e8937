"""The output head at scored positions only, in chunks of rows.

For hidden states h [M,H], head weight W [V,H] and temperature T: z = h W^T / T,
log p = z[target] - logsumexp(z), H = -sum_v p_v log p_v. Logits exist for one chunk at a time; the
backward pass computes them again instead of keeping [M,V]:

    d log p / dz_v = [v = target] - p_v            d H / dz_v = -p_v (log p_v + H)

The product with W runs in the weight's dtype, everything after it in float32 at least.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: logits that one chunk may hold; 2^26 float32 are 256 MiB
CHUNK_ELEMENTS = 1 << 26


class TargetScores(NamedTuple):
    """Of M targets: [M] log-probability and entropy (nats), and [M] bool whether each is the most probable token.
    Entropy and correctness are None unless asked for."""

    logp: Tensor
    entropy: Tensor | None
    correct: Tensor | None


def rows_per_chunk(vocabulary: int, chunk: int | None) -> int:
    """Rows of one chunk: as asked, or as many as :data:`CHUNK_ELEMENTS` allows."""
    return chunk or max(1, CHUNK_ELEMENTS // vocabulary)


def project(hidden: Tensor, weight: Tensor) -> Tensor:
    """[M,H], [V,H] -> [M,V] logits in float32 at least."""
    logits = hidden.to(weight.dtype) @ weight.t()
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def target_logp(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    chunk: int | None = None,
) -> TargetScores:
    """Log-probability of each target; if asked for, the entropy of its distribution and whether it is its mode.

    Args:
        hidden: [M,H] normalised hidden states that predict the targets.
        weight: [V,H] head.
        targets: [M] int64.
        temperature: logits are divided by it.
        entropy: also return entropy and correctness.
        chunk: rows per chunk; None = by memory. Changes results by rounding at most.

    Returns:
        Scores whose log-probabilities and entropies are differentiable once in ``hidden`` and ``weight``.
    """
    logp, spread, correct = _TargetLogp.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, temperature, entropy, rows_per_chunk(weight.shape[0], chunk)
    )
    return TargetScores(logp, spread if entropy else None, correct if entropy else None)


class _TargetLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, entropy: bool, chunk: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(weight.dtype, torch.float32)
        logp = torch.empty(targets.shape, dtype=wide, device=hidden.device)
        spread = torch.zeros_like(logp)
        correct = torch.zeros_like(targets, dtype=torch.bool)
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            log_all = project(hidden[part], weight).div_(temperature).log_softmax(dim=-1)
            logp[part] = log_all.gather(1, targets[part, None])[:, 0]
            if entropy:
                spread[part] = -(log_all.exp() * log_all).sum(dim=-1)
                correct[part] = log_all.argmax(dim=-1) == targets[part]
        ctx.save_for_backward(hidden, weight, targets, spread)
        ctx.temperature, ctx.chunk, ctx.entropy = temperature, chunk, entropy
        ctx.mark_non_differentiable(*((correct,) if entropy else (spread, correct)))
        return logp, spread, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp: Tensor, grad_spread: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, spread = ctx.saved_tensors
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        # Summed over chunks in float32, as one matrix product over all rows would be.
        grad_weight = torch.zeros_like(weight, dtype=spread.dtype) if wants_weight else None
        for start in range(0, len(targets), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            log_all = project(hidden[part], weight).div_(ctx.temperature).log_softmax(dim=-1)
            share = log_all.exp()
            grad = share * -grad_logp[part, None]
            if ctx.entropy:
                grad -= grad_spread[part, None] * share * (log_all + spread[part, None])
            grad.scatter_add_(1, targets[part, None], grad_logp[part, None])
            grad = (grad / ctx.temperature).to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = (grad @ weight).to(hidden.dtype)
            if grad_weight is not None:
                grad_weight += grad.t() @ hidden[part].to(weight.dtype)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None
