"""Model sections of the toy models, so that whole runs can be tested without a published family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dare_core.spec.sections import ModelSection
from dare_core.types import AttentionLayout, ModelFacts

#: characters of the toy vocabulary, by token id
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 +-*/=()<>.,:;!?\n'\"_#ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def toy_facts(kind: str, vocab_size: int, max_positions: int, block_length: int | None) -> ModelFacts:
    """Facts of a toy: mask id ``V - 1``, end and padding id ``V - 2``, characters below."""
    return ModelFacts(
        kind=kind,
        diffusion="masked" if block_length is None else "block",
        vocab_size=vocab_size,
        mask_id=vocab_size - 1,
        eos_ids=(vocab_size - 2,),
        pad_id=vocab_size - 2,
        max_positions=max_positions,
        layout=AttentionLayout() if block_length is None else AttentionLayout("block", block_length),
    )


class ToyMaskedSection(ModelSection):
    """A toy that sees the whole row. ``config`` keys: vocab_size, max_positions, seed."""

    def facts(self, published: Mapping[str, Any]) -> ModelFacts:
        """Facts by the config's sizes."""
        return toy_facts("toy-masked", published["vocab_size"], published["max_positions"], None)


class ToyBlockSection(ModelSection):
    """A toy that sees its own and earlier blocks. ``config`` keys: as the masked toy, and block_length."""

    def facts(self, published: Mapping[str, Any]) -> ModelFacts:
        """Facts by the config's sizes."""
        return toy_facts("toy-block", published["vocab_size"], published["max_positions"], published["block_length"])
