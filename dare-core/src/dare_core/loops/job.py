"""What the two loops are given: everything built, nothing decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dare_core.data.batches import BatchOrder
from dare_core.data.rows import demonstration_rows, one_turn_each, pair_rows
from dare_core.interfaces import LogitMixture, Reward, RolloutBackend, RolloutRequest, TextCodec
from dare_core.loops.inner import Learner
from dare_core.loops.prefixes import with_prefix_scores
from dare_core.loops.session import Session
from dare_core.types import Address, DecodingSettings, Demonstration, Pair, Prompt, Rollout, Rows, Verdict


@dataclass(frozen=True, kw_only=True)
class OnlineJob:
    """A run of the online loop.

    Attributes:
        learner: algorithm, estimator and engine.
        session: bookkeeping.
        prompts: all prompts.
        order: which prompts each step takes.
        samples: responses per prompt (G).
        settings: decoding protocol.
        snapshots: whether rollouts record every denoising forward.
        backend: generates.
        reward: judges.
        max_error_share: share of failed verdicts above which the run stops.
        prefix_rewards: whether the guess of every recorded forward is judged too.
    """

    learner: Learner
    session: Session
    prompts: Sequence[Prompt]
    order: BatchOrder
    samples: int
    settings: DecodingSettings
    snapshots: bool
    backend: RolloutBackend
    reward: Reward
    max_error_share: float
    prefix_rewards: bool = False

    def prompts_of(self, step: int) -> list[Prompt]:
        """The prompts of a training step."""
        return [self.prompts[i] for i in self.order.batch(step)]

    def judged(self, prompts: Sequence[Prompt], rollout: Rollout) -> list[Verdict]:
        """One verdict per row, in row order; ``prompts`` are those of the rows."""
        verdicts = self.reward.judge(prompts, rollout.text)
        if not self.prefix_rewards:
            return verdicts
        codec = self.backend.adapter.text
        return with_prefix_scores(self.reward, codec, self.learner.facts, prompts, rollout, verdicts)

    def request(self, prompts: Sequence[Prompt], step: int) -> RolloutRequest:
        """What to generate for a training step."""
        share = self.learner.algorithm.reference_share
        return RolloutRequest(
            prompts=prompts,
            samples=self.samples,
            settings=self.settings,
            address=Address(self.learner.seed, "rollout", step),
            snapshots=self.snapshots,
            tree=self.learner.algorithm.tree,
            mixture=LogitMixture(share=share, other=partial(self.learner.engine.policy, "reference"))
            if share
            else None,
            policy_version=step,
        )


@dataclass(frozen=True, kw_only=True)
class OfflineJob:
    """A run of the offline loop.

    Attributes:
        learner: algorithm, estimator and engine.
        session: bookkeeping.
        examples: all demonstrations, or all pairs.
        order: which examples each step takes.
        codec: tokenises them.
        max_tokens: longest row allowed, or None.
        one_turn: whether each step learns one answer of a conversation, drawn by address.
    """

    learner: Learner
    session: Session
    examples: Sequence[Demonstration] | Sequence[Pair]
    order: BatchOrder
    codec: TextCodec
    max_tokens: int | None
    one_turn: bool = False

    def rows_of(self, step: int) -> Rows:
        """The rows of a training step: one per demonstration, two per pair."""
        return self.rows_from(self.order.batch(step), step)

    def rows_from(self, picked: Sequence[int], step: int) -> Rows:
        """The rows of the examples at these indices, as ``step`` takes them."""
        chosen = [self.examples[i] for i in picked]
        pairs = [example for example in chosen if isinstance(example, Pair)]
        padding = self.learner.algorithm.supervise_padding
        if pairs:
            return pair_rows(
                pairs, self.codec, self.learner.facts, supervise_padding=padding, max_tokens=self.max_tokens
            )
        demonstrations = [example for example in chosen if isinstance(example, Demonstration)]
        if self.one_turn:
            demonstrations = one_turn_each(demonstrations, Address(self.learner.seed, "trained-turn", step))
        return demonstration_rows(
            demonstrations, self.codec, self.learner.facts, supervise_padding=padding, max_tokens=self.max_tokens
        )

    def epoch(self, step: int) -> float:
        """Epochs done after a training step."""
        return self.order.epoch(step + 1)
