"""The model section of Dream, and the facts of a published config.json.

Ye et al., "Dream 7B: Diffusion Large Language Models", arXiv:2508.15487.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dare_core.backbones.published import FamilyIds, Supported, check_published, choose_ids, value_of
from dare_core.spec.sections import ModelSection
from dare_core.types.model import AttentionLayout, ModelFacts

#: <|mask|>, <|endoftext|>, <|im_end|> of the released tokenizer
DREAM = FamilyIds(mask=151666, end=151643, end_of_turn=151645, rows=152064, tokens=151667)

REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
SUPPORTED: Supported = {
    "hidden_act": ("silu", ("silu",), "silu of the gate"),
    "rope_scaling": (None, (None,), "plain rotary positions"),
    "rope_parameters": (None, (None,), "rotary base by rope_theta"),
    "use_sliding_window": (False, (False, None), "every position sees every other"),
    "use_mrope": (False, (False, None), "one position per token"),
    "attention_dropout": (0.0, (0.0,), "no dropout"),
}


class DreamSection(ModelSection):
    """A Dream checkpoint, or a fresh model of its architecture."""

    eot_id: int | None = Field(
        None, ge=0, description="End-of-turn id, which ends answers; default: config key `eot_token_id`, else 151645."
    )

    def facts(self, published: Mapping[str, Any]) -> ModelFacts:
        """Facts of the checkpoint.

        Ids: this section's, else the published config's, else those of the released tokenizer where the
        vocabulary holds them.

        Raises:
            ValueError: an unsupported or missing architecture key, or an id that is missing or outside the
                vocabulary.
        """
        check_published(published, supported=SUPPORTED, required=REQUIRED)
        ids = choose_ids(self, self.eot_id, published, DREAM)
        return ModelFacts(
            kind="dream",
            diffusion="masked",
            vocab_size=int(published["vocab_size"]),
            mask_id=ids.mask_id,
            eos_ids=ids.eos_ids,
            pad_id=ids.pad_id,
            max_positions=int(value_of(published, "max_position_embeddings", 131072)),
            layout=AttentionLayout(),
            head_rows_unused=ids.head_rows_unused,
            first_token_given=True,
            extra_ids=ids.extra_ids,
        )
