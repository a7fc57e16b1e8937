"""The model section of LLaDA-MoE, and the facts of a published config.json.

Keys that the published code does not apply are ignored here too (:data:`NOT_READ`). Keys that shape the result
and are absent are an error, not a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_core.backbones.published import FamilyIds, Supported, check_published, choose_ids, value_of
from dare_core.spec.sections import ModelSection
from dare_core.types.model import AttentionLayout, ModelFacts

#: mask and end of text of the released tokenizer
LLADA_MOE = FamilyIds(mask=156895, end=156892)

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
REQUIRED = (
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
SUPPORTED: Supported = {
    "hidden_act": ("silu", ("silu",), "silu of the gate"),
    "rope_scaling": (None, (None,), "plain rotary positions"),
    # Not applied by the published code either, but another value would ask for something else.
    "partial_rotary_factor": (1, (1, None), "rotation of whole heads"),
    "attention_dropout": (0.0, (0.0, None), "no dropout"),
}


class LladaMoeSection(ModelSection):
    """A LLaDA-MoE checkpoint, or a fresh model of its architecture."""

    def facts(self, published: Mapping[str, Any]) -> ModelFacts:
        """Facts of the checkpoint.

        Ids: this section's, else the published config's, else those of the released tokenizer where the
        vocabulary holds them.

        Raises:
            ValueError: an unsupported or missing architecture key, or an id that is missing or outside the
                vocabulary.
        """
        check_published(published, supported=SUPPORTED, required=REQUIRED)
        _check_counts(published)
        ids = choose_ids(self, None, published, LLADA_MOE)
        return ModelFacts(
            kind="llada-moe",
            diffusion="masked",
            vocab_size=int(published["vocab_size"]),
            mask_id=ids.mask_id,
            eos_ids=ids.eos_ids,
            pad_id=ids.pad_id,
            max_positions=int(value_of(published, "max_position_embeddings", 8192)),
            layout=AttentionLayout(),
            extra_ids=ids.extra_ids,
        )


def _check_counts(published: Mapping[str, Any]) -> None:
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
    if problems:
        raise ValueError("; ".join(problems))
