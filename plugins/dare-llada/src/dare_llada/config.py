"""The model section of LLaDA, and the facts of a published config.json.

Nie et al., "Large Language Diffusion Models", arXiv:2502.09992. Keys that are absent have the default of the
published configuration class, which is not always what the published checkpoints use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dare_core.backbones.published import FamilyIds, Supported, check_published, choose_ids, value_of
from dare_core.spec.sections import ModelSection
from dare_core.types.model import AttentionLayout, ModelFacts

#: <|mdm_mask|>, <|endoftext|>, <|eot_id|> of the released tokenizer
LLADA = FamilyIds(mask=126336, end=126081, end_of_turn=126348, rows=126464, tokens=126349)

REQUIRED = ("d_model", "n_heads", "n_layers")
SUPPORTED: Supported = {
    "block_type": ("sequential", ("llama",), "separate q, k, v and gate matrices"),
    "layer_norm_type": ("default", ("rms",), "RMSNorm"),
    "activation_type": ("swiglu", ("silu",), "silu of the gate"),
    "rope": (False, (True,), "rotary positions"),
    "alibi": (False, (False, None), "no ALiBi bias"),
    "attention_layer_norm": (False, (False, None), "no norm on queries and keys"),
    "input_emb_norm": (False, (False, None), "embeddings as they are"),
    "scale_logits": (False, (False, None), "logits as they are"),
    "include_bias": (False, (False, None), "no biases"),
    "include_qkv_bias": (False, (False, None), "no biases"),
    "bias_for_layer_norm": (False, (False, None), "no biases"),
    "layer_norm_with_affine": (True, (True,), "norms with a scale"),
    "block_group_size": (1, (1,), "single blocks"),
    "clip_qkv": (None, (None,), "no clipping"),
    "attention_dropout": (0.0, (0.0,), "no dropout"),
    "residual_dropout": (0.0, (0.0,), "no dropout"),
    "embedding_dropout": (0.0, (0.0,), "no dropout"),
}


class LladaSection(ModelSection):
    """A LLaDA checkpoint, or a fresh model of its architecture."""

    eot_id: int | None = Field(
        None, ge=0, description="End-of-turn id, which ends answers; default: config key `eot_token_id`, else 126348."
    )

    def facts(self, published: Mapping[str, Any]) -> ModelFacts:
        """Facts of the checkpoint.

        Ids: this section's, else the published config's, else those of the released tokenizer where the
        vocabulary holds them. A response ends at the first of ``eos_ids``: end of text, then end of turn. The
        released chat models write end of turn after an answer and fill the rest with end of text.

        Raises:
            ValueError: an unsupported architecture key, or an id that is missing or outside the vocabulary.
        """
        has_rows = published.get("embedding_size") is not None
        check_published(published, supported=SUPPORTED, required=REQUIRED if has_rows else (*REQUIRED, "vocab_size"))
        rows = vocabulary_rows(published)
        ids = choose_ids(self, self.eot_id, {**published, "vocab_size": rows}, LLADA)
        return ModelFacts(
            kind="llada",
            diffusion="masked",
            vocab_size=rows,
            mask_id=ids.mask_id,
            eos_ids=ids.eos_ids,
            pad_id=ids.pad_id,
            max_positions=int(value_of(published, "max_sequence_length", 1024)),
            layout=AttentionLayout(),
            head_rows_unused=ids.head_rows_unused,
            extra_ids=ids.extra_ids,
        )


def vocabulary_rows(published: Mapping[str, Any]) -> int:
    """Rows of embedding and head: ``embedding_size``, or ``vocab_size`` where that is null or absent."""
    return int(value_of(published, "embedding_size", published.get("vocab_size")))
