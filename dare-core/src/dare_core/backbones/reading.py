"""Hidden states where they are read: the last layer ends there.

Keys and values of the last layer are needed of all tokens, but what follows its attention (residual, norm, gated MLP
or experts, final norm) only at the places that are read. The layers are the library's, called in the library's order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from dare_core.backbones.packing import Packed


_DECODER = {"embed_tokens", "layers", "norm", "rotary_emb"}
_LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}


def read_states(model: Any, packed: Packed) -> Tensor:
    """[M,H] states of a decoder at ``packed.read``.

    Where something is hooked to the decoder or its last layer as a whole (such as gathering of shards), where that
    layer's activations are recomputed, and where the decoder has other members than a stack of pre-norm layers, the
    decoder's own forward runs.
    """
    plan = {"attention_plan": packed.plan}
    if not _is_stack(model) or _is_wrapped(model) or _is_wrapped(model.layers[-1]):
        full = model(input_ids=packed.tokens[None], position_ids=packed.positions[None], use_cache=False, **plan)
        return full.last_hidden_state[0].index_select(0, packed.read)  # type: ignore[no-any-return]
    return _stack_states(model, packed, plan)


def _stack_states(model: Any, packed: Packed, plan: dict[str, Any]) -> Tensor:
    hidden = model.embed_tokens(packed.tokens[None])
    place = packed.positions[None]
    shared = {"position_embeddings": model.rotary_emb(hidden, position_ids=place), "position_ids": place, **plan}
    for layer in model.layers[:-1]:
        hidden = layer(hidden, **shared)
    last = model.layers[-1]
    mixed, _ = last.self_attn(hidden_states=last.input_layernorm(hidden), attention_mask=None, **shared)
    hidden = hidden.index_select(1, packed.read) + mixed.index_select(1, packed.read)
    if not len(packed.read):
        return hidden[0]
    hidden = hidden + last.mlp(last.post_attention_layernorm(hidden))
    return model.norm(hidden)[0]  # type: ignore[no-any-return]


def _is_wrapped(part: Any) -> bool:
    return bool(part._forward_pre_hooks or part._forward_hooks or "forward" in vars(part))


def _is_stack(model: Any) -> bool:
    members = {name for name, _ in model.named_children()}
    return members == _DECODER and {name for name, _ in model.layers[-1].named_children()} == _LAYER
