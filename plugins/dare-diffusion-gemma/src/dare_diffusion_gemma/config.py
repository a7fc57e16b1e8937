"""The model section of DiffusionGemma, and the facts of a published config.json.

A model of uniform noise: an undecided position holds a random token, and there is no mask token. Prompt and finished
blocks are read causally, a block ("canvas") of ``canvas_length`` tokens is denoised with all of itself in sight; the
first one begins where the response does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from dare_core.backbones.published import Supported, check_published, value_of
from dare_core.spec.sections import ModelSection
from dare_core.types.model import AttentionLayout, ModelFacts

CANVAS_LENGTH = 256
END, PADDING = 1, 0

REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_experts",
    "top_k_experts",
    "moe_intermediate_size",
)
SUPPORTED: Supported = {
    "hidden_activation": ("gelu_pytorch_tanh", ("gelu_pytorch_tanh",), "tanh form of gelu"),
    "attention_bias": (False, (False, None), "no biases"),
    "attention_dropout": (0.0, (0.0, None), "no dropout"),
    "use_bidirectional_attention": (None, (None, "vision"), "text is read causally"),
    "tie_word_embeddings": (True, (True,), "the head is the embedding"),
}


class DiffusionGemmaSection(ModelSection):
    """A DiffusionGemma checkpoint, or a fresh model of its architecture."""

    model_kind: ClassVar[str] = "diffusion-gemma"

    eot_id: int | None = Field(
        None,
        ge=0,
        description="End-of-turn id, which ends answers and is written behind them by SFT; default: config key "
        "`eot_token_id`, else the first end id.",
    )
    block_length: int | None = Field(
        None, ge=1, description="Tokens denoised together; default: config key `canvas_length`, else 256."
    )

    def facts(self, published: Mapping[str, Any]) -> ModelFacts:
        """Facts of the checkpoint. End ids: this section's, else those of the folder's generation_config.json, else
        the config's.

        Raises:
            ValueError: a missing or unsupported architecture key, an id outside the vocabulary, or a mask token.
        """
        if self.mask_id is not None:
            raise ValueError("this family has no mask token: leave 'mask_id' out")
        text: Mapping[str, Any] = published.get("text_config") or {}
        check_published(text, supported=SUPPORTED, required=REQUIRED)
        if not value_of(published, "tie_word_embeddings", True):
            raise ValueError("tie_word_embeddings=False is not supported: encoder, decoder and head share weights")
        turn = self.eot_id if self.eot_id is not None else published.get("eot_token_id")
        ends = self.eos_ids or _ids(self._sampler().get("eos_token_id")) or _ids(value_of(text, "eos_token_id", END))
        if self.eos_ids is None and turn is not None and turn not in ends:
            ends = (*ends, int(turn))
        length = self.block_length or int(value_of(published, "canvas_length", CANVAS_LENGTH))
        return ModelFacts(
            kind=self.model_kind,
            diffusion="block",
            vocab_size=int(text["vocab_size"]),
            mask_id=None,
            eos_ids=ends,
            pad_id=self.pad_id if self.pad_id is not None else int(value_of(text, "pad_token_id", PADDING)),
            max_positions=int(value_of(text, "max_position_embeddings", 131072)),
            layout=AttentionLayout("block", length, "response", "causal"),
            extra_ids={} if turn is None else {"eot": int(turn)},
        )

    def _sampler(self) -> Mapping[str, Any]:
        """The folder's generation_config.json, where it has one: its end ids are those of the published sampler."""
        path = None if self.path is None else Path(self.path) / "generation_config.json"
        if path is None or not path.is_file():
            return {}
        read = json.loads(path.read_text(encoding="utf-8"))
        return read if isinstance(read, Mapping) else {}


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(one) for one in value) if isinstance(value, list | tuple) else (int(value),)
