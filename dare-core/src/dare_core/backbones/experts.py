"""Experts of the library's mixture-of-experts models: each one runs once, on the tokens routed to it.

A transformers model built with ``experts_implementation="dare"`` calls :func:`routed_experts` in every such
layer, with weights stacked over experts: ``gate_up_proj`` [E,2I,H] and ``down_proj`` [E,H,I]. Tokens are
sorted by expert; results are put back in order and summed over a token's experts, which is deterministic on
every device. In bfloat16 on a GPU the library's grouped matrix product does the same in fewer kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward

EXPERTS = "dare"
#: the grouped product wants rows of whole 16 bytes
_ALIGNED = 8


def routed_experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Weighted sum of each token's experts, ``sum_j w_j down_j(act(gate_j h) * up_j h)``.

    Args:
        module: the library's experts, gated and without biases.
        hidden_states: [T,H].
        top_k_index: [T,k] int64 experts of each token.
        top_k_weights: [T,k]; products and sum run in the wider of their and the states' dtype.

    Returns:
        [T,H] in the dtype of ``hidden_states``.
    """
    if not module.has_gate or module.has_bias or module.is_transposed:
        raise ValueError(f"{type(module).__name__}: only gated experts without biases are supported")
    if _fits_grouped(module, hidden_states):
        grouped: Tensor = grouped_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)
        return grouped
    tokens, choices = top_k_index.shape
    order = top_k_index.flatten().argsort(stable=True)
    counts = top_k_index.flatten().bincount(minlength=module.num_experts).tolist()
    gate, up = _grouped_linear(hidden_states[order // choices], module.gate_up_proj, counts).chunk(2, dim=-1)
    sorted_results = _grouped_linear(module.act_fn(gate) * up, module.down_proj, counts)
    results = sorted_results[order.argsort()].view(tokens, choices, -1)
    return (results * top_k_weights[:, :, None]).sum(dim=1).to(hidden_states.dtype)


def _grouped_linear(rows: Tensor, stack: Tensor, counts: list[int]) -> Tensor:
    """[S,in] rows in groups of ``counts`` [E], each times its matrix of ``stack`` [E,out,in] -> [S,out]."""
    result: Tensor = _GroupedLinear.apply(rows, stack, counts)  # type: ignore[no-untyped-call]
    return result


class _GroupedLinear(torch.autograd.Function):
    """Indexing the stack would give every expert a gradient of the whole stack; here each fills its part of one."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, stack: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(rows, stack)
        ctx.counts = counts
        out = rows.new_empty(rows.shape[0], stack.shape[1])
        for expert, part in _groups(counts):
            torch.mm(rows[part], stack[expert].t(), out=out[part])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, stack = ctx.saved_tensors
        wants_rows, wants_stack, _ = ctx.needs_input_grad
        grad_rows = torch.empty_like(rows) if wants_rows else None
        grad_stack = torch.zeros_like(stack) if wants_stack else None
        for expert, part in _groups(ctx.counts):
            if grad_rows is not None:
                torch.mm(upstream[part], stack[expert], out=grad_rows[part])
            if grad_stack is not None:
                torch.mm(upstream[part].t(), rows[part], out=grad_stack[expert])
        return grad_rows, grad_stack, None


def _groups(counts: list[int]) -> Iterator[tuple[int, slice]]:
    """Experts that got tokens, each with its rows."""
    start = 0
    for expert, count in enumerate(counts):
        if count:
            yield expert, slice(start, start + count)
        start += count


def _fits_grouped(module: Any, hidden_states: Tensor) -> bool:
    if hidden_states.device.type != "cuda" or hidden_states.dtype != torch.bfloat16:
        return False
    widths = (hidden_states.shape[-1], module.down_proj.shape[-1])
    aligned = all(width % _ALIGNED == 0 for width in widths)
    return aligned and torch.cuda.get_device_capability(hidden_states.device) >= (8, 0)


ExpertsInterface.register(EXPERTS, routed_experts)
