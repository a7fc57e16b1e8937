"""Options of likelihood-based training. Defaults are the authors'; options of estimators lie beside them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from dare_core.spec.sections import AlgorithmSection, GroupAlgorithmSection

KlChoice = Literal["k1", "k1-score", "abs", "k2", "k3", "k3-clamped"]


class SftSection(AlgorithmSection):
    """Supervised fine-tuning."""

    supervise_padding: bool = Field(
        True,
        description="Fill each answer with end tokens to the longest row of its batch; they are noised and learned, "
        "which teaches length. False: an answer ends with its first end token.",
    )
    loss_normalizer: Literal["sequence", "supervised-tokens", "noised-tokens", "rows"] = Field(
        "sequence",
        description="Divisor: each answer's length, then the mean over rows; all answer tokens; all noised tokens; "
        "or the number of rows.",
    )
    confidence_weight: float = Field(
        0.0, ge=0, description="Weight of the mean entropy at hidden tokens that the model already gets right."
    )


class DpoSection(AlgorithmSection):
    """Direct preference optimisation on ELBO estimates."""

    beta: float = Field(0.1, gt=0, description="Scale of the preference score.")
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="Probability that a pair's labels are swapped (conservative DPO)."
    )
    sft_weight: float = Field(
        0.0, ge=0, description="Weight of the chosen answers' NELBO per token, added to the loss."
    )
    reference_free: bool = Field(False, description="Leave the reference policy out of the score.")
    score_divisor: float | None = Field(
        None, gt=0, description="Every estimate is divided by this before beta; null = not divided."
    )
    views: Literal["fresh", "fixed"] = Field(
        "fresh",
        description="`fresh`: a pair gets new times and masks each time it is met; `fixed`: the same ones in every "
        "epoch, and in every run with this seed.",
    )
    reference_cache: str | None = Field(
        None,
        description="File that keeps the reference policy's estimates for later epochs and runs; needs `views: fixed`. "
        "They are worked out before the first step, and no reference policy is held. null = scored at each step.",
    )

    @model_validator(mode="after")
    def _cached_views(self) -> DpoSection:
        if self.reference_cache is not None and self.views != "fixed":
            raise ValueError("'reference_cache' needs 'views: fixed': fresh views are never met again")
        if self.reference_cache is not None and self.reference_free:
            raise ValueError("'reference_cache' and 'reference_free' contradict each other")
        return self


class VrpoSection(DpoSection):
    """VRPO: DPO on estimates of little variance."""

    beta: float = Field(0.2, gt=0, description="Scale of the preference score.")


class GroupRewardSection(GroupAlgorithmSection):
    """What the RL algorithms share."""

    inner_updates: PositiveInt = Field(1, description="Optimizer steps that reuse one rollout, each with new views.")
    baseline: Literal["mean", "leave-one-out"] = Field(
        "mean", description="Subtracted from a reward: the group's mean, or the mean of the group's other rows."
    )
    scale: Literal["none", "std", "population-std"] = Field(
        "none", description="What divides the advantage: nothing, the group's std over n - 1, or over n."
    )
    scale_eps: float = Field(1e-6, gt=0, description="Added to the std.")
    lone_row: Literal["zero", "raw"] = Field(
        "zero", description="Advantage of a group with one usable row: 0, or its reward (mean 0, std 1)."
    )


class SequencePolicySection(GroupRewardSection):
    """What the algorithms with a likelihood ratio per sequence share."""

    clip_range: float = Field(0.2, ge=0, lt=1, description="How far the ratio may fall below 1.")
    clip_range_high: float | None = Field(
        None, ge=0, description="How far the ratio may rise above 1; null = clip_range."
    )
    kl_weight: float = Field(0.0, ge=0, description="Weight of the KL term to the reference policy (beta); 0 = off.")
    kl_form: KlChoice = Field("k2", description="KL surrogate on the difference of estimates.")

    @property
    def clip_high(self) -> float:
        """How far the ratio may rise above 1."""
        return self.clip_range if self.clip_range_high is None else self.clip_range_high


class BgpoSection(SequencePolicySection):
    """BGPO."""

    group_size: int = Field(8, ge=2, description="Responses per prompt (G).")
    scale: Literal["none", "std", "population-std"] = Field(
        "std", description="What divides the advantage: nothing, the group's std over n - 1, or over n."
    )
    lone_row: Literal["zero", "raw"] = Field(
        "raw", description="Advantage of a group with one usable row: 0, or its reward (mean 0, std 1)."
    )
    dual_clip: float | None = Field(3.0, gt=1, description="Bound c of the loss for negative advantages; null = off.")
    length_divisor: float | None = Field(
        None, gt=0, description="What the estimates' difference is divided by; null = the row's own length."
    )
    reduction: Literal["token-mean", "sequence-mean-token-sum", "sequence-mean-token-mean", "fixed-length"] = Field(
        "token-mean", description="Weight of a sequence: its tokens of all, its tokens, 1, or tokens over longest row."
    )

    @model_validator(mode="after")
    def _consistent(self) -> BgpoSection:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"dual_clip {self.dual_clip} must exceed 1 + the upper clip range, {1 + self.clip_high}")
        return self


class EbpoSection(SequencePolicySection):
    """EBPO."""

    group_size: int = Field(8, ge=2, description="Responses per prompt (G).")
    scale: Literal["none", "std", "population-std"] = Field(
        "std", description="What divides the advantage: nothing, the group's std over n - 1, or over n."
    )
    lone_row: Literal["zero", "raw"] = Field(
        "raw", description="Advantage of a group with one usable row: 0, or its reward (mean 0, std 1)."
    )
    ratio: Literal["sequence", "per-token"] = Field(
        "sequence", description="exp of the estimates' difference, or of that difference per token of the row."
    )


class EspoSection(SequencePolicySection):
    """ESPO."""

    group_size: int = Field(6, ge=2, description="Responses per prompt (G).")
    inner_updates: PositiveInt = Field(8, description="Optimizer steps that reuse one rollout, each with new views.")
    baseline: Literal["mean", "leave-one-out"] = Field(
        "leave-one-out", description="Subtracted from a reward: the group's mean, or the mean of its other rows."
    )
    kl_weight: float = Field(1e-3, ge=0, description="Weight of the KL term to the reference policy (beta); 0 = off.")
    length_divisor: float | None = Field(
        None, gt=0, description="Tokens that differences are divided by; null = the batch's longest response."
    )


class SpgSection(GroupRewardSection):
    """SPG."""

    group_size: int = Field(6, ge=2, description="Responses per prompt (G).")
    inner_updates: PositiveInt = Field(4, description="Optimizer steps that reuse one rollout, each with new views.")
    negative: Literal["mix", "upper", "lower", "zero"] = Field(
        "mix", description="Estimate for rows without a positive advantage; `zero` leaves them out."
    )
    mix_weight: float = Field(0.5, ge=0, le=1, description="Share of the upper estimate in `mix`.")
