"""Options of likelihood-based training and of the estimators it uses. Defaults are the authors'."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from dare_core.api import SectionConfig
from dare_core.spec.sections import AlgorithmSection


class SftSection(AlgorithmSection):
    """Supervised fine-tuning."""

    supervise_padding: bool = Field(
        True,
        description="Fill each answer with end tokens to the longest row of its batch; they are noised and learned, "
        "which teaches length. False: an answer ends with its first end token.",
    )
    loss_normalizer: Literal["sequence", "supervised-tokens", "noised-tokens"] = Field(
        "sequence",
        description="Divisor: each answer's length, then the mean over rows; all answer tokens; or all noised tokens.",
    )


class BernoulliSection(SectionConfig):
    """Each response token is hidden independently, with one time per row and draw."""

    draws: PositiveInt = Field(1, description="Views per row, each with its own time and mask.")
    schedule: Literal["linear", "cosine"] = Field("linear", description="Share of hidden tokens at time t.")
    weight: Literal["elbo", "none"] = Field("elbo", description="`elbo`: 1/t for the linear schedule; `none`: 1.")
    time_low: float = Field(1e-3, gt=0, lt=1, description="Smallest time; keeps the weight finite.")
    time_high: float = Field(1.0, gt=0, le=1, description="Largest time.")

    @model_validator(mode="after")
    def _ordered(self) -> BernoulliSection:
        if self.time_low > self.time_high:
            raise ValueError(f"time_low {self.time_low} exceeds time_high {self.time_high}")
        return self
