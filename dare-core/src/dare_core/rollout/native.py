"""The native backend: the reference decoder on the live model."""

from __future__ import annotations

from dare_core.diffusion.denoise import denoise
from dare_core.diffusion.rollouts import evaluating, rollout_of, sample_rows
from dare_core.interfaces import ModelAdapter, RolloutBackend, RolloutRequest
from dare_core.rollout.config import NativeSection
from dare_core.types import Rollout


class NativeBackend(RolloutBackend):
    """Generates with the live adapter, attached LoRA included, in evaluation mode and without gradient.

    The rollout is returned on the CPU. Its log-probabilities are those of the distribution the tokens were
    chosen from at temperature 1: they equal the policy's unless guidance or suppression is on. Where tokens may be
    edited after their commit there are none, and the trace does not replay.
    """

    exactness = "exact"
    config: NativeSection

    def __init__(self, config: NativeSection, adapter: ModelAdapter) -> None:
        super().__init__(config, adapter)

    def generate(self, request: RolloutRequest) -> Rollout:
        """See the interface."""
        rows = sample_rows(self.adapter, request)
        with evaluating(self.adapter.module):
            result = denoise(
                self.adapter,
                rows.tokens,
                request.settings,
                request.address,
                rows.sample_id,
                sampler=self.config.sampler,
                ties=self.config.ties,
                snapshots=request.snapshots,
                rows_per_batch=self.config.rows_per_batch,
                cache=self.config.cache == "auto",
                watch=request.watch,
            )
        return rollout_of(self.adapter, rows, result, request.policy_version)
