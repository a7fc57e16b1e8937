"""The model sections of SDAR, and the facts of a published config.json.

Cheng et al., "SDAR: A Synergistic Diffusion-AutoRegression Paradigm", arXiv:2510.06303. The released
mixture-of-experts config has neither ``mask_token_id`` nor ``block_size``; the family's values count then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from dare_core.backbones.published import FamilyIds, Supported, check_published, choose_ids, value_of
from dare_core.spec.sections import ModelSection
from dare_core.types.model import AttentionLayout, BlockOrigin, ModelFacts

#: <|MASK|>, <|endoftext|>, <|im_end|> of the released tokenizer
SDAR = FamilyIds(mask=151669, end=151643, end_of_turn=151645, rows=151936, tokens=151670)
BLOCK_LENGTH = 4

REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
EXPERTS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
SUPPORTED: Supported = {
    "hidden_act": ("silu", ("silu",), "silu of the gate"),
    "rope_scaling": (None, (None,), "plain rotary positions"),
    "rope_parameters": (None, (None,), "rotary base by rope_theta"),
    "attention_bias": (False, (False, None), "no biases"),
    "use_sliding_window": (False, (False, None), "every earlier block is visible"),
    "attention_dropout": (0.0, (0.0,), "no dropout"),
}


class SdarSection(ModelSection):
    """A dense SDAR checkpoint, or a fresh model of its architecture."""

    model_kind: ClassVar[str] = "sdar"
    required: ClassVar[tuple[str, ...]] = (*REQUIRED, "rope_theta")

    eot_id: int | None = Field(
        None, ge=0, description="End-of-turn id, which ends answers; default: config key `eot_token_id`, else 151645."
    )
    block_length: int | None = Field(
        None, ge=1, description="Block length the weights were trained with; default: config key `block_size`, else 4."
    )
    block_origin: BlockOrigin = Field(
        "global",
        description="Where blocks are counted from: `global` = the row's first token, as published; "
        "`response` or `prompt-end`: the response starts a block of its own.",
    )
    thinking: bool = Field(
        True,
        description="true: answers open with their think part (empty where there is none); "
        "false: the prompt closes an empty one, as the template's enable_thinking=False.",
    )

    def facts(self, published: Mapping[str, Any]) -> ModelFacts:
        """Facts of the checkpoint.

        Ids and block length: this section's, else the published config's, else the family's where the
        vocabulary holds them.

        Raises:
            ValueError: an unsupported or missing architecture key, or an id that is missing or outside the
                vocabulary.
        """
        check_published(published, supported=SUPPORTED, required=self.required)
        ids = choose_ids(self, self.eot_id, published, SDAR)
        block_length = self.block_length or int(value_of(published, "block_size", BLOCK_LENGTH))
        return ModelFacts(
            kind=self.model_kind,
            diffusion="block",
            vocab_size=int(published["vocab_size"]),
            mask_id=ids.mask_id,
            eos_ids=ids.eos_ids,
            pad_id=ids.pad_id,
            max_positions=int(value_of(published, "max_position_embeddings", 32768)),
            layout=AttentionLayout("block", block_length, self.block_origin),
            head_rows_unused=ids.head_rows_unused,
            extra_ids=ids.extra_ids,
        )


class SdarMoeSection(SdarSection):
    """An SDAR mixture-of-experts checkpoint, or a fresh model of its architecture."""

    model_kind: ClassVar[str] = "sdar-moe"
    required: ClassVar[tuple[str, ...]] = (*SdarSection.required, *EXPERTS)
