"""Options of the likelihood estimators. Defaults are the authors'."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from dare_core.api import SectionConfig


class ElboSection(SectionConfig):
    """What the estimators of a response's ELBO share."""

    draws: PositiveInt = Field(1, description="Monte-Carlo draws per row.")
    per: Literal["row", "view"] = Field("row", description="One estimate per row, or one per view of it.")
    shared_by: Literal["row", "group"] = Field(
        "row", description="Who has random numbers of its own: each row, or each group (both sides of a pair)."
    )
    targets: Literal["response", "completion"] = Field(
        "response",
        description="Tokens that are hidden and scored: the whole response, or up to and including the first end "
        "token, without what follows.",
    )


class BernoulliSection(ElboSection):
    """Each response token is hidden independently, with one time per row and draw."""

    schedule: Literal["linear", "cosine"] = Field("linear", description="Share of hidden tokens at time t.")
    weight: Literal["elbo", "none", "remaining", "cart"] = Field(
        "elbo",
        description="`elbo`: 1/t for the linear schedule; `none`: 1; `remaining`: 1 - t; `cart`: by visible context.",
    )
    time_low: float = Field(1e-3, gt=0, lt=1, description="Smallest time; keeps the weight finite.")
    time_high: float = Field(1.0, gt=0, le=1, description="Largest time.")
    cart_decay: float = Field(
        0.1, gt=0, lt=1, description="p of `cart`: a visible token at distance d adds p (1 - p)^(d - 1) / 2."
    )
    redraws: int = Field(
        0,
        ge=0,
        description="Times that time and mask are drawn anew where nothing is hidden; after them one token is hidden. "
        "0 = such draws stay empty.",
    )
    score_kept: bool = Field(
        False,
        description="Score the response tokens that are not hidden as well, with weight 1: for models of uniform "
        "noise, which cannot know what is noise. No bound of the likelihood.",
    )
    complementary: bool = Field(False, description="A second view per draw hides what the first one shows.")
    end_run_as_one: bool = Field(
        False, description="The end tokens that close a response are hidden together, or not at all."
    )
    crop: Literal["none", "batch", "length"] = Field(
        "none",
        description="Cut every response of a step to one length, drawn at each step: `batch`: of one of the batch's; "
        "`length`: from 1 to the longest.",
    )
    crop_chance: float = Field(1.0, gt=0, le=1, description="Share of steps at which `crop` cuts.")
    focal_power: float | None = Field(
        None,
        ge=0,
        description="gamma of Dream's focal weight: a token's log-probability is multiplied by focal_scale "
        "(1 - p)^gamma; null = off.",
    )
    focal_scale: float = Field(1.0, gt=0, description="alpha of the focal weight.")

    @model_validator(mode="after")
    def _consistent(self) -> BernoulliSection:
        if self.time_low > self.time_high:
            raise ValueError(f"time_low {self.time_low} exceeds time_high {self.time_high}")
        if self.complementary and self.weight == "elbo" and self.schedule != "linear":
            raise ValueError("'complementary' with 'weight: elbo' is for the linear schedule, whose weights are known")
        return self


class CountSection(ElboSection):
    """An exact number of response tokens is hidden."""

    systematic: Literal["draws", "rows", "none"] = Field(
        "draws",
        description="Counts step evenly around their range from one start: over a row's draws, over the batch's rows, "
        "or each is drawn on its own.",
    )
    set_size: PositiveInt | None = Field(
        None, description="With `systematic: draws`, draws that share a start; null = all."
    )
    rounding: Literal["exact", "published"] = Field(
        "exact", description="`exact`: every count equally likely; `published`: steps are rounded half to even."
    )

    @model_validator(mode="after")
    def _whole_sets(self) -> CountSection:
        if self.set_size is not None and (self.systematic != "draws" or self.draws % self.set_size):
            raise ValueError(f"set_size {self.set_size} must divide draws {self.draws}, with 'systematic: draws'")
        return self


class CountStratifiedSection(CountSection):
    """LLaDA's form: from one token to all."""


class EspoEstimatorSection(CountSection):
    """ESPO's form: from no token to all, in complementary pairs."""

    draws: PositiveInt = Field(2, description="Monte-Carlo draws per row, each a pair of views if coupled.")
    systematic: Literal["draws", "rows", "none"] = Field(
        "rows",
        description="Counts step evenly around their range from one start: over a row's draws, over the batch's rows, "
        "or each is drawn on its own.",
    )
    coupled: bool = Field(True, description="Score the complement of each mask too, and average the two.")


class BlockStratifiedSection(ElboSection):
    """EBPO's form: every block of the layout has hidden tokens in every view."""

    draws: PositiveInt = Field(16, description="Monte-Carlo draws per row.")
    targets: Literal["response", "completion"] = Field(
        "completion",
        description="Tokens that are hidden and scored: the whole response, or up to and including the first end "
        "token, without what follows.",
    )
    draw_weights: tuple[float, ...] | None = Field(
        None, description="Weight of each draw in the sum, not normalised; null = 1 / draws each."
    )

    @model_validator(mode="after")
    def _weights(self) -> BlockStratifiedSection:
        weights = self.draw_weights
        if weights is None:
            return self
        if len(weights) != self.draws or min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(f"draw_weights must be {self.draws} numbers >= 0 with a positive sum")
        if self.per == "view":
            raise ValueError("draw_weights belong to 'per: row'")
        return self


class SpgEstimatorSection(SectionConfig):
    """SPG's block-wise views with a lower and an upper estimate per token."""

    draws: PositiveInt = Field(2, description="Views per row.")
    masking: Literal["block-random", "random", "all", "block-all"] = Field(
        "block-random",
        description="`block-random`: part of one block, and all that follows; `random`: part of the completion; "
        "`all`: all of it; `block-all`: one block and all that follows.",
    )
    block_length: PositiveInt = Field(32, description="Positions per block, counted from the response's start.")
    least: float = Field(0.0, ge=0, le=1, description="Smallest share of the block or completion that is hidden.")
    most: float = Field(1.0, gt=0, le=1, description="Largest share of the block or completion that is hidden.")
    context_mask: float = Field(
        0.15, ge=0, le=1, description="Probability that a token of the prompt or of an earlier block is hidden."
    )
    power: float = Field(1.5, gt=0, description="beta of the upper estimate; it falls to the lower one as beta -> 0.")
    shared_by: Literal["row", "group"] = Field(
        "row", description="Who has random numbers of its own: each row, or each group (both sides of a pair)."
    )

    @model_validator(mode="after")
    def _ordered(self) -> SpgEstimatorSection:
        if self.least > self.most:
            raise ValueError(f"least {self.least} exceeds most {self.most}")
        return self
