"""The plain reference loop that ``rollout.py`` measures against.

As the published scripts decode: every step runs the whole sequence of every row, applies the output head to all
positions, draws by Gumbel noise and takes confidences in float64 over all of them, and a batch runs until its longest
row is done. One sampled step costs the same as any other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    query, key = query.to(value.dtype), key.to(value.dtype)
    grouped = query.shape[1] != key.shape[1]
    mixed = scaled_dot_product_attention(query, key, value, scale=scaling, enable_gqa=grouped)
    return mixed.transpose(1, 2), None


AttentionInterface.register("plain", _attend)


class PlainLoop:
    """Low-confidence decoding of a canvas [B,L] whose response starts at one column.

    Args:
        module: a causal-LM class of transformers, made bidirectional; its attention is switched while a step runs.
        mask_id: the mask token.
        temperature: 0 = argmax.
        block_length: positions per block.
    """

    def __init__(self, module: Any, mask_id: int, temperature: float, block_length: int) -> None:
        self.module, self.mask_id = module, mask_id
        self.temperature, self.block_length = temperature, block_length

    @torch.no_grad()
    def step(self, canvas: Tensor, start: int, quota: int = 1) -> Tensor:
        """The canvas after one step; the block is the first one from ``start`` on that holds a mask."""
        logits = self._logits(canvas)
        token = self._drawn(logits).argmax(dim=-1)
        confidence = logits.to(torch.float64).softmax(dim=-1).gather(-1, token[..., None])[..., 0]
        masked = canvas == self.mask_id
        first = int(masked.any(dim=0).nonzero()[0, 0])
        end = start + ((first - start) // self.block_length + 1) * self.block_length
        confidence[:, end:] = -torch.inf
        confidence = torch.where(masked, confidence, -torch.inf)
        chosen = confidence.topk(quota, dim=1).indices
        return canvas.scatter(1, chosen, token.gather(1, chosen))

    def _logits(self, canvas: Tensor) -> Tensor:
        config = self.module.config
        before, config._attn_implementation = config._attn_implementation, "plain"
        try:
            states = self.module.model(input_ids=canvas, use_cache=False).last_hidden_state
        finally:
            config._attn_implementation = before
        logits: Tensor = self.module.lm_head(states).float()
        return logits

    def _drawn(self, logits: Tensor) -> Tensor:
        if self.temperature == 0:
            return logits
        wide = logits.to(torch.float64)
        noise = torch.rand_like(wide)
        return wide.exp() / (-torch.log(noise)) ** self.temperature
