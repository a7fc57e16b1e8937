"""The model section of LLaDA2, and the facts of a published config.json.

Keys that the published code does not read are ignored here too (:data:`NOT_READ`): several of them name choices
that the code has built in. Keys that shape the result and are absent are an error, not a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, PositiveInt

from dare_core.backbones.published import FamilyIds, Supported, check_published, choose_ids, value_of
from dare_core.spec.sections import ModelSection
from dare_core.types.model import AttentionLayout, ModelFacts

#: <|mask|> and <|endoftext|> of the released tokenizer; the released configs name neither
LLADA2 = FamilyIds(mask=156895, end=156892)
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
REQUIRED = (
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
SUPPORTED: Supported = {
    "hidden_act": ("silu", ("silu",), "silu of the gate"),
    "rope_scaling": (None, (None,), "plain rotary positions"),
    "use_bias": (False, (False, None), "no bias of the attention output"),
    "use_sliding_window": (False, (False, None), "every earlier block is visible"),
    "attention_dropout": (0.0, (0.0, None), "no dropout"),
    "embedding_dropout": (0.0, (0.0, None), "no dropout"),
    "output_dropout": (0.0, (0.0, None), "no dropout"),
}


class Llada2Section(ModelSection):
    """A LLaDA2 checkpoint, or a fresh model of its architecture."""

    block_length: PositiveInt | None = Field(
        None,
        description="Positions per block, counted from the row's start, as the weights were trained; default: config "
        "key `block_size`, else 32.",
    )
    eot_id: int | None = Field(
        None,
        ge=0,
        description="Id of `<|role_end|>`, to end answers with it; default: config key `eot_token_id`, else answers "
        "end with the first of `eos_ids`.",
    )

    def facts(self, published: Mapping[str, Any]) -> ModelFacts:
        """Facts of the checkpoint.

        Ids and block length: this section's, else the published config's, else the family's where the
        vocabulary holds them.

        Raises:
            ValueError: an unsupported or missing architecture key, or an id that is missing or outside the
                vocabulary.
        """
        check_published(published, supported=SUPPORTED, required=REQUIRED)
        _check_counts(published)
        block_length = self.block_length or int(value_of(published, "block_size", BLOCK_LENGTH))
        ids = choose_ids(self, self.eot_id, published, LLADA2)
        return ModelFacts(
            kind="llada2",
            diffusion="block",
            vocab_size=int(published["vocab_size"]),
            mask_id=ids.mask_id,
            eos_ids=ids.eos_ids,
            pad_id=ids.pad_id,
            max_positions=int(value_of(published, "max_position_embeddings", 32768)),
            layout=AttentionLayout("block", block_length),
            extra_ids=ids.extra_ids,
        )


def _check_counts(published: Mapping[str, Any]) -> None:
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
    if problems:
        raise ValueError("; ".join(problems))
