"""The model section of LLaDA, and the facts of a published config.json.

Nie et al., "Large Language Diffusion Models", arXiv:2502.09992. Keys that are absent have the default of the
published configuration class, which is not always what the published checkpoints use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dare_core.spec.sections import ModelSection
from dare_core.types.model import AttentionLayout, ModelFacts

#: ids of the published tokenizer
MASK, END_OF_TEXT, END_OF_TURN = 126336, 126081, 126348
#: vocabulary rows of the published checkpoints, of which the tokenizer knows the first 126349
PUBLISHED_ROWS, PUBLISHED_TOKENS = 126464, 126349

#: key -> (default where the key is absent, supported values, what they mean)
_SUPPORTED: Mapping[str, tuple[Any, tuple[Any, ...], str]] = {
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
        check_architecture(published)
        rows = vocabulary_rows(published)
        eos = _id(None, published, "eos_token_id", END_OF_TEXT, rows)
        eot = _id(self.eot_id, published, "eot_token_id", END_OF_TURN, rows)
        mask = _id(self.mask_id, published, "mask_token_id", MASK, rows)
        if mask is None:
            raise ValueError("config has no 'mask_token_id'; give 'mask_id' in the model section")
        eos_ids = self.eos_ids if self.eos_ids is not None else tuple(i for i in (eos, eot) if i is not None)
        if not eos_ids:
            raise ValueError("config has no 'eos_token_id'; give 'eos_ids' in the model section")
        pad = _id(self.pad_id, published, "pad_token_id", eos_ids[0], rows)
        return ModelFacts(
            kind="llada",
            diffusion="masked",
            vocab_size=rows,
            mask_id=mask,
            eos_ids=eos_ids,
            pad_id=eos_ids[0] if pad is None else pad,
            max_positions=int(_value(published, "max_sequence_length", 1024)),
            layout=AttentionLayout(),
            head_rows_unused=PUBLISHED_TOKENS if rows == PUBLISHED_ROWS else None,
            extra_ids={} if eot is None else {"eot": eot},
        )


def check_architecture(published: Mapping[str, Any]) -> None:
    """Refuse what the backbone does not compute.

    Raises:
        ValueError: names every key, its value and what is supported.
    """
    problems = []
    for key, (default, allowed, meaning) in _SUPPORTED.items():
        value = published.get(key, default)
        if value not in allowed:
            absent = " (the default of an absent key)" if key not in published else ""
            problems.append(f"{key}={value!r}{absent} is not supported; supported: {allowed[0]!r} ({meaning})")
    problems += [f"config has no {key!r}" for key in ("d_model", "n_heads", "n_layers") if published.get(key) is None]
    if vocabulary_rows(published, check=False) is None:
        problems.append("config has neither 'embedding_size' nor 'vocab_size'")
    if problems:
        raise ValueError("; ".join(problems))


def vocabulary_rows(published: Mapping[str, Any], *, check: bool = True) -> Any:
    """Rows of embedding and head: ``embedding_size``, or ``vocab_size`` where that is null or absent."""
    rows = published.get("embedding_size") or published.get("vocab_size")
    return int(rows) if check and rows is not None else rows


def _value(published: Mapping[str, Any], key: str, default: Any) -> Any:
    """The key's value; null and absent keys have the default."""
    value = published.get(key)
    return default if value is None else value


def _id(given: int | None, published: Mapping[str, Any], key: str, fallback: int, rows: int) -> int | None:
    if given is not None:
        return given
    if published.get(key) is not None:
        return int(published[key])
    return fallback if fallback < rows else None
