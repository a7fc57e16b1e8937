"""Options of the fastdllm backend."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from dare_core.api import SectionConfig
from dare_core.diffusion.config import DenoisingSection
from dare_core.spec.sections import SelectionSection


class CreditSection(SectionConfig):
    """Constants of credit decoding (dInfer)."""

    weight: float = Field(0.7, ge=0, description="Weight of log(1 + credit) in the logits.")
    boost: float = Field(0.2, ge=0, description="Exponent of the largest probability that is added as credit.")
    decay: float = Field(0.8, ge=0, le=1, description="Share of a credit that is left at the next forward.")


class FastSection(DenoisingSection):
    """Decodes with the live model against approximate caches, several tokens per forward."""

    block_length: PositiveInt | None = Field(32, description="Positions denoised together.")
    selection: SelectionSection = Field(
        default_factory=lambda: SelectionSection(kind="confidence-threshold"), description="Commit rule."
    )
    cache: Literal["prefix", "dual", "none"] = Field(
        "prefix",
        description="What further forwards of a block read instead of computing: `prefix` = everything before the "
        "block; `dual` = everything outside the block; `none` = nothing, every forward is exact.",
    )
    refresh_every: PositiveInt | None = Field(
        None, description="Compute whole rows at every n-th forward of a block; default: at its first one only."
    )
    credit: CreditSection | None = Field(
        None, description="Add credit for what earlier forwards of the block preferred; `{}` = published constants."
    )
    check_agreement: int = Field(
        0,
        ge=0,
        description="Rows of each rollout that are decoded again without cache; the share of equal tokens is recorded.",
    )

    @model_validator(mode="after")
    def _whole_rows(self) -> FastSection:
        if self.guidance:
            raise ValueError("guidance needs forwards of whole rows: set it to 0, or take the native backend")
        return self
