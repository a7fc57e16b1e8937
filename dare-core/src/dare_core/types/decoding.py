"""How responses are decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, get_args

#: how many tokens commit at a step: ``even`` = a block's masked tokens shared evenly over its steps; ``even-block`` =
#: as if the whole block were masked, so that a block that holds prompt tokens needs fewer steps (SDAR, LLaDA2);
#: ``linear-time`` = the whole part of n (1 - s/t) of n masked tokens, time going from 1 to ``schedule_eps`` (Dream);
#: ``doubling`` = 2^i tokens at step i of a block, all the rest at its last step (CJ-GRPO's ascending step size);
#: ``anew`` = every step decides the whole block again, for models of uniform noise
Schedule = Literal["even", "even-block", "linear-time", "doubling", "anew"]


class EosRule(StrEnum):
    """What end-of-sequence tokens do while decoding. Text is always cut at the first one."""

    FILL = "fill"
    """Decode every position; masked models fill the tail with EOS."""
    STOP = "stop"
    """Decode no block after the one that holds an EOS or end of turn."""
    STOP_EARLY = "stop-early"
    """As ``stop``; and when a step commits an end token, and nothing before the first one is masked, stop at once."""
    SUPPRESS = "suppress"
    """EOS logits are -inf before sampling: no EOS appears. A separate end-of-turn token may."""
    SUPPRESS_CONFIDENCE = "suppress-confidence"
    """EOS (and end-of-turn) may be chosen but commit last: their confidence is -inf."""


@dataclass(frozen=True, slots=True)
class SelectionRule:
    """Which masked positions commit: a rule's name in the selection table, and its options."""

    kind: str = "low-confidence"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DecodingSettings:
    """One decoding protocol, as recorded with every result.

    Attributes:
        new_tokens: response positions to decode per row.
        block_length: positions denoised together; blocks are decoded left to right.
        steps_per_block: denoising forwards planned per block.
        temperature: 0 = argmax.
        top_p: smallest set of tokens whose probability exceeds this is kept; 1 = off.
        top_k: number of most probable tokens kept; 0 = off.
        min_p: tokens below this share of the top probability are dropped; 0 = off.
        guidance: classifier-free guidance scale w, logits = u + (w + 1)(c - u); 0 = off.
        eos_rule: see :class:`EosRule`.
        selection: which positions commit at a step.
        whole_blocks: decode every block that holds one of the new tokens to its end, so that up to
            ``block_length - 1`` tokens more than ``new_tokens`` are computed; the completion leaves them out.
        schedule: tokens that commit at a step, see :data:`Schedule`.
        schedule_eps: the time at which ``linear-time`` ends.
    """

    new_tokens: int
    block_length: int
    steps_per_block: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    guidance: float = 0.0
    eos_rule: EosRule = EosRule.FILL
    selection: SelectionRule = field(default_factory=SelectionRule)
    whole_blocks: bool = False
    schedule: Schedule = "even"
    schedule_eps: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("new_tokens", "block_length", "steps_per_block"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.schedule not in get_args(Schedule) or not 0 <= self.schedule_eps < 1:
            raise ValueError(
                f"schedule {self.schedule!r} must be one of {', '.join(get_args(Schedule))}, "
                f"schedule_eps {self.schedule_eps} in [0, 1)"
            )
        if self.steps_per_block > self.block_length and self.schedule not in ("linear-time", "anew"):
            raise ValueError(
                f"steps_per_block {self.steps_per_block} exceeds block_length {self.block_length}: "
                "a step without a token to commit is wasted"
            )
        doublings = max(1, self.block_length.bit_length() - 1)
        if self.schedule == "doubling" and self.steps_per_block != doublings:
            raise ValueError(
                f"schedule 'doubling' decodes a block of {self.block_length} tokens in {doublings} steps, "
                f"not {self.steps_per_block}"
            )
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0 or not 0 <= self.min_p < 1:
            raise ValueError(
                f"temperature {self.temperature} must be >= 0, top_p {self.top_p} in (0, 1], "
                f"top_k {self.top_k} >= 0, min_p {self.min_p} in [0, 1)"
            )
        object.__setattr__(self, "eos_rule", EosRule(self.eos_rule))
