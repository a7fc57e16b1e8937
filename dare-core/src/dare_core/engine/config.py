"""Options of the reference engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from dare_core.spec.sections import EngineSection


class LocalSection(EngineSection):
    """One process, one device."""

    tokens_per_microbatch: PositiveInt = Field(
        16384, description="Tokens scored at once; a view longer than this goes alone. Changes memory, never results."
    )
    activation_checkpointing: bool = Field(
        False, description="Recompute each layer's activations in the backward pass: less memory, more compute."
    )
    autocast: Literal["auto", "off", "bfloat16"] = Field(
        "auto", description="Matrix products in bfloat16; `auto` = on CUDA devices that have it, never on CPU."
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop",
        description="When a score, loss or gradient is not finite: stop the run, or skip that optimizer step.",
    )
