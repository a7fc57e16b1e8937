"""What a model family states about a checkpoint, and what a forward may see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

BlockOrigin = Literal["global", "response", "prompt-end"]
Noise = Literal["mask", "uniform"]


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """Which positions of a row may see each other.

    Attributes:
        kind: ``full`` (every position sees every valid position) or ``block`` (a position sees its own
            block and all earlier ones; scored copies see their noisy block and earlier clean blocks).
        block_length: positions per block, for ``block``.
        origin: where blocks are counted from: ``global`` = the row's first valid position, so that a block
            may hold the prompt's tail and the first response tokens; ``response`` = restart at the response;
            ``prompt-end`` = counted from the response both ways, so that the first prompt block may be short.
        finished: how clean tokens (the prompt, finished blocks) attend under a ``block`` layout: by ``block``, or
            ``causal`` = each sees itself and what is left of it. The block that is denoised sees all of itself.
    """

    kind: Literal["full", "block"] = "full"
    block_length: int | None = None
    origin: BlockOrigin = "global"
    finished: Literal["block", "causal"] = "block"

    def __post_init__(self) -> None:
        if self.kind == "block" and (self.block_length is None or self.block_length < 1):
            raise ValueError(f"a block layout needs block_length >= 1, not {self.block_length}")
        if self.kind == "full" and self.block_length is not None:
            raise ValueError("a full layout has no block_length")
        if self.kind == "full" and self.finished != "block":
            raise ValueError("a full layout has no finished blocks")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of one checkpoint that others need, read without torch.

    Attributes:
        kind: the model kind that states them.
        diffusion: ``masked`` or ``block``.
        vocab_size: rows of the output head, V.
        mask_id: the mask token, or None for models of uniform noise; see :attr:`noise`.
        eos_ids: tokens that end a response; the first one is the one written by SFT.
        pad_id: filler outside rows; never scored.
        max_positions: longest row the model was made for, in tokens.
        layout: how rows attend by default.
        head_rows_unused: head rows beyond the tokenizer, never to be sampled: ids >= this value (None = all used).
        first_token_given: whether nothing predicts a row's first token, as where logits are shifted; it is then never
            learnt, also where there is no prompt.
        extra_ids: further named ids, e.g. ``{"eot": 126348}``.
    """

    kind: str
    diffusion: Literal["masked", "block"]
    vocab_size: int
    mask_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int
    max_positions: int
    layout: AttentionLayout = field(default_factory=AttentionLayout)
    head_rows_unused: int | None = None
    first_token_given: bool = False
    extra_ids: dict[str, int] = field(default_factory=dict)

    @property
    def noise(self) -> Noise:
        """What an undecided position holds: the ``mask`` token, or a token drawn ``uniform`` from the vocabulary."""
        return "uniform" if self.mask_id is None else "mask"

    def __post_init__(self) -> None:
        named = {
            "mask_id": self.mask_id,
            "pad_id": self.pad_id,
            **{f"eos_ids[{i}]": e for i, e in enumerate(self.eos_ids)},
        }
        for name, value in (named | self.extra_ids).items():
            if value is not None and not 0 <= value < self.vocab_size:
                raise ValueError(f"{name} = {value} lies outside the vocabulary 0..{self.vocab_size - 1}")
        if self.mask_id is not None and self.mask_id in self.eos_ids:
            raise ValueError(f"mask_id {self.mask_id} is also an end token {self.eos_ids}")
