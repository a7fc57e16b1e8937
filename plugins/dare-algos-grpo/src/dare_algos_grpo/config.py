"""Options of the policy-gradient algorithms and of the estimators they use. Defaults are the authors'."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from dare_core.api import SectionConfig
from dare_core.spec.sections import GroupAlgorithmSection, ValueModelSection
from dare_core.types import TreeShape

TokenReduction = Literal["token-mean", "sequence-mean-token-sum", "sequence-mean-token-mean", "fixed-length"]


class GroupPolicySection(GroupAlgorithmSection):
    """What all policy gradients of this package share."""

    inner_updates: PositiveInt = Field(1, description="Optimizer steps that reuse one rollout (mu).")
    baseline: Literal["mean", "leave-one-out", "none"] = Field(
        "mean",
        description="Subtracted from a reward: the group's mean, the mean of the group's other rows, or nothing.",
    )
    scale: Literal["none", "std", "population-std"] = Field(
        "none", description="What divides the advantage: nothing, the group's std over n - 1, or over n."
    )
    scale_eps: float = Field(1e-6, gt=0, description="Added to the std.")
    lone_row: Literal["zero", "raw"] = Field(
        "zero", description="Advantage of a group with one usable row: 0, or its reward (mean 0, std 1)."
    )
    mean_reward_range: tuple[float, float] | None = Field(
        None, description="Groups whose mean reward lies outside [low, high] carry no loss; null = all do."
    )
    drop_flat_groups: bool = Field(
        False, description="Groups of equal rewards carry no loss, KL included, and enter no divisor."
    )
    refill_rounds: int = Field(
        0,
        ge=0,
        description="Rounds of further prompts, at most, that replace groups left out of a step's loss; 0 = none.",
    )
    trained_tokens: Literal["completion", "response"] = Field(
        "completion", description="Up to and including the first end token, or every response token."
    )

    @model_validator(mode="after")
    def _range(self) -> GroupPolicySection:
        if self.refill_rounds and not self.drop_flat_groups and self.mean_reward_range is None:
            raise ValueError("'refill_rounds' replaces groups that 'drop_flat_groups' or 'mean_reward_range' leave out")
        if self.mean_reward_range is not None and self.mean_reward_range[0] > self.mean_reward_range[1]:
            raise ValueError(f"mean_reward_range {list(self.mean_reward_range)} must read [low, high]")
        return self


class ClippedPolicySection(GroupPolicySection):
    """What the clipped policy-gradient losses share."""

    #: reductions that divide by a number of tokens per sequence
    fixed_lengths: ClassVar[tuple[str, ...]] = ("fixed-length",)

    clip_range: float = Field(0.2, ge=0, lt=1, description="How far the ratio may fall below 1.")
    clip_range_high: float | None = Field(
        None, ge=0, description="How far the ratio may rise above 1; null = clip_range."
    )
    dual_clip: float | None = Field(None, gt=1, description="Bound c of the loss for negative advantages; null = off.")
    kl_weight: float = Field(0.0, ge=0, description="Weight of the KL term to the reference policy (beta); 0 = off.")
    kl_form: Literal["k1", "abs", "k2", "k3", "k3-clamped"] = Field("k3", description="Per-token KL surrogate.")
    reduction: str = Field("token-mean", description="From token losses to one number.")
    length_divisor: float | None = Field(
        None, gt=0, description="Tokens per sequence, for `fixed-length`; null = the batch's longest response."
    )

    @model_validator(mode="after")
    def _consistent(self) -> ClippedPolicySection:
        if self.length_divisor is not None and self.reduction not in self.fixed_lengths:
            names = " or ".join(f"'reduction: {name}'" for name in self.fixed_lengths)
            raise ValueError(f"'length_divisor' belongs to {names}, not to '{self.reduction}'")
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"dual_clip {self.dual_clip} must exceed 1 + the upper clip range, {1 + self.clip_high}")
        return self

    @property
    def clip_high(self) -> float:
        """How far the ratio may rise above 1."""
        return self.clip_range if self.clip_range_high is None else self.clip_range_high


class D1Section(ClippedPolicySection):
    """diffu-GRPO."""

    group_size: int = Field(6, ge=2, description="Responses per prompt (G).")
    inner_updates: PositiveInt = Field(12, description="Optimizer steps that reuse one rollout (mu).")
    clip_range: float = Field(0.5, ge=0, lt=1, description="How far the ratio may fall below 1.")
    kl_weight: float = Field(0.04, ge=0, description="Weight of the KL term to the reference policy (beta); 0 = off.")
    reduction: TokenReduction = Field("token-mean", description="From token losses to one number.")


class CoupledGrpoSection(ClippedPolicySection):
    """Coupled-GRPO."""

    group_size: int = Field(10, ge=2, description="Responses per prompt (G).")
    inner_updates: PositiveInt = Field(2, description="Optimizer steps that reuse one rollout (mu).")
    baseline: Literal["mean", "leave-one-out"] = Field(
        "leave-one-out", description="Subtracted from a reward: the group's mean, or the mean of its other rows."
    )
    scale_eps: float = Field(1e-4, gt=0, description="Added to the std.")
    clip_range: float = Field(0.5, ge=0, lt=1, description="How far the ratio may fall below 1.")
    kl_weight: float = Field(0.01, ge=0, description="Weight of the KL term to the reference policy (beta); 0 = off.")
    reduction: TokenReduction = Field("token-mean", description="From token losses to one number.")


class CjGrpoSection(ClippedPolicySection):
    """CJ-GRPO."""

    group_size: int = Field(6, ge=2, description="Responses per prompt (G).")
    inner_updates: PositiveInt = Field(12, description="Optimizer steps that reuse one rollout (mu).")
    clip_range: float = Field(0.5, ge=0, lt=1, description="How far the ratio may fall below 1.")
    kl_weight: float = Field(0.04, ge=0, description="Weight of the KL term to the reference policy (beta); 0 = off.")
    trained_tokens: Literal["completion", "response"] = Field(
        "response", description="Every response token, or those up to and including the first end token."
    )
    reduction: Literal[TokenReduction, "step-mean", "transition-mean"] = Field(
        "step-mean",
        description="`step-mean`: token mean per denoising step of the batch, then over steps; `transition-mean`: per "
        "row, block and step, then over a row's, then over rows; or over tokens.",
    )


class JustGrpoSection(ClippedPolicySection):
    """JustGRPO."""

    fixed_lengths: ClassVar[tuple[str, ...]] = ("fixed-length", "informative-rows")

    group_size: int = Field(16, ge=2, description="Responses per prompt (G).")
    scale: Literal["none", "std", "population-std"] = Field(
        "std", description="What divides the advantage: nothing, the group's std over n - 1, or over n."
    )
    scale_eps: float = Field(1e-4, gt=0, description="Added to the std.")
    trained_tokens: Literal["completion", "response"] = Field(
        "response", description="Every response token, or those up to and including the first end token."
    )
    reduction: Literal[TokenReduction, "informative-rows"] = Field(
        "informative-rows",
        description="`informative-rows`: sum / (tokens per sequence x rows with an advantage); or over tokens.",
    )
    count_eps: float = Field(1e-5, ge=0, description="Added to the number of rows with an advantage.")


class MdpoSection(ClippedPolicySection):
    """MDPO."""

    group_size: int = Field(8, ge=2, description="Responses per prompt (G).")
    scale: Literal["none", "std", "population-std"] = Field(
        "std", description="What divides the advantage: nothing, the group's std over n - 1, or over n."
    )
    scale_eps: float = Field(1e-4, gt=0, description="Added to the std.")
    kl_weight: float = Field(0.02, ge=0, description="Weight of the KL term to the reference policy (beta); 0 = off.")
    kl_form: Literal["k1", "abs", "k2", "k3", "k3-clamped"] = Field("k2", description="Per-token KL surrogate.")
    trained_tokens: Literal["response"] = Field("response", description="Every hidden position of a step's guess.")
    reduction: Literal["step-mean"] = Field(
        "step-mean", description="Token mean per chosen step, then mean over steps."
    )
    train_steps: PositiveInt = Field(8, description="Denoising steps trained, those with the largest sum of |A|.")
    select_per: Literal["group", "batch"] = Field(
        "group", description="Each group's own steps, or the same steps for the whole batch."
    )
    count_eps: float = Field(1e-4, ge=0, description="Added to numbers of hidden positions.")


class TraceValueSection(ValueModelSection):
    """TraceRL's value model."""

    gamma: float = Field(1.0, ge=0, le=1, description="Discount per trace step.")
    lam: float = Field(1.0, ge=0, le=1, description="How far advantages look ahead along the trace (lambda).")
    clip_range: float = Field(0.2, gt=0, description="How far a value may move from the old one within a step.")


class TraceRlSection(ClippedPolicySection):
    """TraceRL."""

    fixed_lengths: ClassVar[tuple[str, ...]] = ("fixed-length", "by-layout", "view-length")

    group_size: int = Field(16, ge=2, description="Responses per prompt (G).")
    scale: Literal["none", "std", "population-std"] = Field(
        "population-std", description="What divides the advantage: nothing, the group's std over n - 1, or over n."
    )
    scale_eps: float = Field(1e-8, gt=0, description="Added to the std.")
    mean_reward_range: tuple[float, float] | None = Field(
        (0.2, 0.8), description="Groups whose mean reward lies outside [low, high] carry no loss; null = all do."
    )
    fail_overlong: bool = Field(True, description="An answer without an end token has reward 0.")
    kl_weight: float = Field(0.01, ge=0, description="Weight of the KL term (beta); 0 = off.")
    kl_to: Literal["old", "reference"] = Field(
        "old", description="Policy that the KL term keeps near: the one that sampled, or the reference."
    )
    reduction: Literal[TokenReduction, "by-layout", "view-mean", "view-length"] = Field(
        "by-layout",
        description="`view-mean`: mean over views of their token mean; `view-length`: of their token sum over tokens "
        "per sequence; `by-layout`: the former for masked, the latter for block models; or over tokens.",
    )
    block_log_ratio_limit: float | None = Field(
        10.0, gt=0, description="Bound of |l - l_old| for block models, in nats; null = none."
    )
    value_model: TraceValueSection | None = Field(
        None, description="A value model, which gives each token an advantage along the trace; null = none."
    )

    @property
    def needs(self) -> frozenset[str]:
        """A model that carries a value head, if there is to be a value model."""
        return frozenset() if self.value_model is None else frozenset({"value-head"})


class DTreeRpoSection(ClippedPolicySection):
    """d-TreeRPO."""

    group_size: int = Field(16, ge=2, description="Leaves per prompt: root_branches x branches^(levels - 1).")
    root_branches: PositiveInt = Field(4, description="Continuations of the fully masked response.")
    branches: PositiveInt = Field(4, description="Continuations of every later canvas that branches.")
    levels: PositiveInt = Field(2, description="Stages of equal length that a response is decoded in.")
    inner_updates: PositiveInt = Field(12, description="Optimizer steps that reuse one rollout (mu).")
    baseline: Literal["mean", "leave-one-out"] = Field(
        "leave-one-out", description="Subtracted from a value: the siblings' mean with or without its own."
    )
    lone_row: Literal["zero", "raw"] = Field(
        "raw", description="Advantage of a segment without judged siblings: 0, or its value."
    )
    clip_range: float = Field(0.4, ge=0, lt=1, description="How far the ratio may fall below 1.")
    kl_weight: float = Field(0.01, ge=0, description="Weight of the KL term to the reference policy (beta); 0 = off.")
    trained_tokens: Literal["response"] = Field("response", description="Every token that a segment adds and scores.")
    reduction: Literal["segment-mean"] = Field(
        "segment-mean", description="Token mean per segment, then over segments."
    )
    distill_weight: float = Field(3e-3, ge=0, description="Weight of self-distillation at its end (lambda); 0 = off.")
    distill_growth: float = Field(2.0, gt=0, description="How late the weight rises (gamma).")
    distill_temperature: float = Field(
        2.0, gt=0, description="Temperature of the siblings' weights at the start (tau)."
    )
    distill_cooling: float = Field(0.7, ge=0, description="How fast that temperature falls to 0.")
    distill_steps: PositiveInt = Field(
        30000, description="Optimizer steps until weight and temperature reach their end."
    )

    @property
    def tree(self) -> TreeShape:
        """How responses branch."""
        return TreeShape(self.root_branches, self.branches, self.levels)

    @model_validator(mode="after")
    def _leaves(self) -> DTreeRpoSection:
        if self.group_size != self.tree.leaves:
            raise ValueError(f"group_size {self.group_size} must be the number of leaves, {self.tree.leaves}")
        return self


class Wd1Section(GroupPolicySection):
    """wd1."""

    group_size: int = Field(6, ge=2, description="Responses per prompt (G).")
    inner_updates: PositiveInt = Field(12, description="Optimizer steps that reuse one rollout (mu).")
    repel_weight: float = Field(
        1.0, ge=0, description="Weight of the term that lowers the likelihood of poor responses; 0 = attract only."
    )
    reference_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the reference policy's logits in those sampled from; 0 = the policy alone.",
    )

    @property
    def needs(self) -> frozenset[str]:
        """A decoder that mixes policies, if it is to."""
        return frozenset({"mixture"}) if self.reference_share else frozenset()


class OneStepSection(SectionConfig):
    """One forward on the fully hidden response."""

    prompt_mask: float = Field(0.15, ge=0, le=1, description="Probability that a prompt token is hidden.")


class _HiddenShares(SectionConfig):
    """Base of random masks that hide a share between two bounds."""

    ratio_low: float
    ratio_high: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.ratio_low > self.ratio_high:
            raise ValueError(f"ratio_low {self.ratio_low} exceeds ratio_high {self.ratio_high}")
        return self


class CoupledSection(_HiddenShares):
    """A complementary pair of views and the fully hidden one."""

    ratio_low: float = Field(0.2, gt=0, lt=1, description="Smallest share of tokens hidden in the pair's first view.")
    ratio_high: float = Field(0.8, gt=0, lt=1, description="Largest share of tokens hidden in the pair's first view.")
    ratio_per: Literal["batch", "row"] = Field("batch", description="One share for the batch, or one per row.")


class TrajectorySection(SectionConfig):
    """One forward per denoising step of the rollout."""

    merge_steps: PositiveInt = Field(1, description="Consecutive denoising steps scored by one forward.")
    pad_targets: int | None = Field(
        None, ge=0, description="Tokens scored per row that are the model's pad id, the first ones; null = all."
    )


class SnapshotsSection(SectionConfig):
    """One forward per chosen denoising forward of the rollout, scoring its guess."""

    temperature: float | None = Field(
        None, gt=0, description="Logits are divided by it; null = the rollout's sampling temperature."
    )
    scored_tokens: Literal["response", "completion"] = Field(
        "response", description="Every token of a guess, or those up to and including its first end token."
    )


class RandomMaskSection(_HiddenShares):
    """Random shares of the response hidden."""

    draws: PositiveInt = Field(35, description="Masks drawn per row.")
    ratio_low: float = Field(0.1, gt=0, le=1, description="Smallest share of tokens hidden, in expectation.")
    ratio_high: float = Field(0.9, gt=0, le=1, description="Largest share of tokens hidden, in expectation.")
    complement: bool = Field(False, description="Each mask is followed by the one that hides all other tokens.")


class LeftToRightSection(SectionConfig):
    """One forward per response position, with everything after it hidden."""

    temperature: float | None = Field(
        None, gt=0, description="Logits are divided by it; null = the rollout's sampling temperature."
    )
