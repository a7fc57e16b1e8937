"""What LLaDA-MoE computes differently from transformers' Qwen3Moe classes.

By default the two agree: softmax routing in float32 without renormalisation, query and key norms per head. The
options that some checkpoints may use are here: a routing bias, a shared expert, clipped queries, keys and values,
and attention without norms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeAttention,
    Qwen3MoeMLP,
    Qwen3MoeSparseMoeBlock,
    Qwen3MoeTopKRouter,
    apply_rotary_pos_emb,
)

from dare_core.backbones.attention import planned_attention


class BiasedRouter(Qwen3MoeTopKRouter):
    """Router whose bias is added to the probabilities before the choice, and stays in the weights."""

    def __init__(self, config: Qwen3MoeConfig) -> None:
        super().__init__(config)
        self.register_buffer("expert_bias", torch.zeros(config.num_experts))

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Raw logits [T,E], weights [T,k] and experts [T,k] of ``hidden_states`` [...,H]."""
        logits = nn.functional.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
        chances = logits.softmax(dim=-1, dtype=torch.float32) + self.expert_bias
        weights, experts = chances.topk(self.top_k, dim=-1)
        return logits, weights.to(logits.dtype), experts


class SharedExpertBlock(Qwen3MoeSparseMoeBlock):
    """Routed experts plus one that every token takes, neither gated nor scaled."""

    def __init__(self, config: Qwen3MoeConfig, width: int) -> None:
        super().__init__(config)
        self.shared_expert = Qwen3MoeMLP(config, intermediate_size=width)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[1,T,H] -> [1,T,H]."""
        routed: Tensor = super().forward(hidden_states)
        return routed + self.shared_expert(hidden_states)


class ClippedAttention(Qwen3MoeAttention):
    """Attention with norms or without, and with queries, keys and values clipped after the norms.

    Args:
        config: the library's.
        layer_idx: number of the layer.
        norm: whether queries and keys are normalised per head.
        limit: values are clipped to ±limit; None = not clipped.
    """

    def __init__(self, config: Qwen3MoeConfig, layer_idx: int, *, norm: bool, limit: float | None) -> None:
        super().__init__(config, layer_idx)
        self.limit = limit
        if not norm:
            self.q_norm, self.k_norm = nn.Identity(), nn.Identity()

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], attention_mask: Any = None, **more: Any
    ) -> tuple[Tensor, None]:
        """[1,T,H] -> [1,T,H]; ``more`` holds the attention plan."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states).view(shape))
        key = self.k_norm(self.k_proj(hidden_states).view(shape))
        value = self.v_proj(hidden_states).view(shape)
        if self.limit is not None:
            query, key, value = (t.clamp(-self.limit, self.limit) for t in (query, key, value))
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        mixed, _ = planned_attention(self, query, key, value, attention_mask, self.scaling, **more)
        return self.o_proj(mixed.reshape(*hidden_states.shape[:-1], -1)), None
