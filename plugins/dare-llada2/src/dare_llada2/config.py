"""The model section of LLaDA2, and the facts of a published config.json.

Keys that the published code does not read are ignored here too (:data:`NOT_READ`): several of them name choices
that the code has built in. Keys that shape the result and are absent are an error, not a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, PositiveInt

from dare_core.spec.sections import ModelSection
from dare_core.types.model import AttentionLayout, ModelFacts

#: ids of the published tokenizer, which the published configs lack
MASK, END_OF_TEXT = 156895, 156892
#: positions per block of the published models
BLOCK_LENGTH = 32

#: published keys without any effect on the published code
NOT_READ = (
    "score_function",
    "router_dtype",
    "norm_topk_prob",
    "use_qk_norm",
    "use_rmsnorm",
    "norm_head",
    "norm_softmax",
    "moe_router_enable_expert_bias",
    "using_split_qkv_in_self_attention",
    "sliding_window",
    "rotary_dim",
)

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "moe_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "first_k_dense_replace",
    "num_shared_experts",
    "routed_scaling_factor",
    "partial_rotary_factor",
    "rope_theta",
    "rms_norm_eps",
)

#: key -> (supported values, the first one also stands for an absent key; what they mean)
_SUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "hidden_act": (("silu",), "silu of the gate"),
    "rope_scaling": ((None,), "plain rotary positions"),
    "use_bias": ((False, None), "no bias of the attention output"),
    "use_sliding_window": ((False, None), "whole rows"),
    "attention_dropout": ((0.0, None), "no dropout"),
    "embedding_dropout": ((0.0, None), "no dropout"),
    "output_dropout": ((0.0, None), "no dropout"),
}


class Llada2Section(ModelSection):
    """A LLaDA2 checkpoint, or a fresh model of its architecture."""

    block_length: PositiveInt = Field(
        BLOCK_LENGTH, description="Positions per block, counted from the row's start; the models were trained with 32."
    )
    role_end_id: int | None = Field(
        None,
        ge=0,
        description="Id of `<|role_end|>`, to end answers with it; default: config key `role_end_token_id`, else "
        "answers end with the first of `eos_ids`.",
    )

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
        role_end = _id(self.role_end_id, published, "role_end_token_id", None, rows)
        eos_ids = self.eos_ids if self.eos_ids is not None else tuple(i for i in (eos, role_end) if i is not None)
        if not eos_ids:
            raise ValueError("config has no 'eos_token_id'; give 'eos_ids' in the model section")
        pad = _id(self.pad_id, published, "pad_token_id", END_OF_TEXT, rows)
        return ModelFacts(
            kind="llada2",
            diffusion="block",
            vocab_size=rows,
            mask_id=mask,
            eos_ids=eos_ids,
            pad_id=eos_ids[0] if pad is None else pad,
            max_positions=int(published.get("max_position_embeddings") or 32768),
            layout=AttentionLayout("block", self.block_length),
            extra_ids={} if role_end is None else {"role_end": role_end},
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
    experts, groups = int(published["num_experts"]), int(published["n_group"])
    chosen, kept = int(published["num_experts_per_tok"]), int(published["topk_group"])
    heads, kv_heads = int(published["num_attention_heads"]), int(published["num_key_value_heads"])
    problems = []
    if experts % groups or experts // groups < 2:
        problems.append(f"num_experts={experts} must be n_group={groups} equal groups of two or more")
    elif kept > groups or chosen > kept * (experts // groups):
        problems.append(f"num_experts_per_tok={chosen} do not fit into topk_group={kept} of n_group={groups} groups")
    if int(published["num_shared_experts"]) < 1:
        problems.append("num_shared_experts=0 is not supported; supported: 1 or more")
    if heads % kv_heads:
        problems.append(f"num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    return problems


def _id(given: int | None, published: Mapping[str, Any], key: str, fallback: int | None, rows: int) -> int | None:
    if given is not None:
        return given
    if published.get(key) is not None:
        return int(published[key])
    return fallback if fallback is not None and fallback < rows else None
