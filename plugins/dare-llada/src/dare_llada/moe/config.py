"""The model section of LLaDA-MoE, and the facts of a published config.json.

Keys that the published code does not apply are ignored here too (:data:`NOT_READ`). ``partial_rotary_factor`` is
one of them, but a value that would ask for something else than whole heads is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_core.spec.sections import ModelSection
from dare_core.types.model import AttentionLayout, ModelFacts

#: ids of the published tokenizer
MASK, END_OF_TEXT = 156895, 156892

#: published keys that do not change the result of the published code
NOT_READ = (
    "norm_topk_prob",
    "routed_scaling_factor",
    "moe_router_score_function",
    "router_num_group",
    "router_topk_group",
    "router_aux_loss_coef",
    "output_router_logits",
)

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "num_experts",
    "num_experts_per_tok",
    "expert_intermediate_size",
    "moe_layer_freq",
    "rope_theta",
    "rms_norm_eps",
)

#: key -> (supported values, the first one also stands for an absent key; what they mean)
_SUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "hidden_act": (("silu",), "silu of the gate"),
    "rope_scaling": ((None,), "plain rotary positions"),
    "partial_rotary_factor": ((1, None), "rotation of whole heads"),
    "attention_dropout": ((0.0, None), "no dropout"),
}


class LladaMoeSection(ModelSection):
    """A LLaDA-MoE checkpoint, or a fresh model of its architecture."""

    def facts(self, published: Mapping[str, Any]) -> ModelFacts:
        """Facts of the checkpoint.

        Ids: this section's, else the published config's, else those of the released tokenizer where the
        vocabulary holds them.

        Raises:
            ValueError: an unsupported architecture key, or an id that is missing or outside the vocabulary.
        """
        check_architecture(published)
        rows = int(published["vocab_size"])
        mask = _id(self.mask_id, published, "mask_token_id", MASK, rows)
        if mask is None:
            raise ValueError("config has no 'mask_token_id'; give 'mask_id' in the model section")
        eos = _id(None, published, "eos_token_id", END_OF_TEXT, rows)
        eos_ids = self.eos_ids if self.eos_ids is not None else (() if eos is None else (eos,))
        if not eos_ids:
            raise ValueError("config has no 'eos_token_id'; give 'eos_ids' in the model section")
        pad = _id(self.pad_id, published, "pad_token_id", END_OF_TEXT, rows)
        return ModelFacts(
            kind="llada-moe",
            diffusion="masked",
            vocab_size=rows,
            mask_id=mask,
            eos_ids=eos_ids,
            pad_id=eos_ids[0] if pad is None else pad,
            max_positions=int(published.get("max_position_embeddings") or 8192),
            layout=AttentionLayout(),
        )


def check_architecture(published: Mapping[str, Any]) -> None:
    """Refuse what the backbone does not compute.

    Raises:
        ValueError: names every key, its value and what is supported.
    """
    problems = [f"config has no {key!r}" for key in _REQUIRED if published.get(key) is None]
    for key, (allowed, meaning) in _SUPPORTED.items():
        if published.get(key, allowed[0]) not in allowed:
            problems.append(f"{key}={published[key]!r} is not supported; supported: {allowed[0]!r} ({meaning})")
    if not problems:
        problems = _misfits(published)
    if problems:
        raise ValueError("; ".join(problems))


def _misfits(published: Mapping[str, Any]) -> list[str]:
    layers, experts = int(published["num_hidden_layers"]), int(published["num_experts"])
    chosen, frequency = int(published["num_experts_per_tok"]), published["moe_layer_freq"]
    heads, kv_heads = int(published["num_attention_heads"]), int(published["num_key_value_heads"])
    problems = []
    if not isinstance(frequency, list | tuple) or len(frequency) != layers:
        problems.append(f"moe_layer_freq={frequency!r} must have one entry per layer, num_hidden_layers={layers}")
    elif 0 in frequency and published.get("dense_intermediate_size") is None:
        problems.append("config has no 'dense_intermediate_size', which dense layers (moe_layer_freq 0) need")
    if chosen > experts:
        problems.append(f"num_experts_per_tok={chosen} is more than num_experts={experts}")
    if int(published["hidden_size"]) % heads:
        problems.append(f"hidden_size={published['hidden_size']} is no multiple of num_attention_heads={heads}")
    if heads % kv_heads:
        problems.append(f"num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    return problems


def _id(given: int | None, published: Mapping[str, Any], key: str, fallback: int, rows: int) -> int | None:
    if given is not None:
        return given
    if published.get(key) is not None:
        return int(published[key])
    return fallback if fallback < rows else None
