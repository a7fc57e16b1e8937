"""The native backend: the reference decoder on the live model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from dare_core.diffusion.denoise import DenoiseResult, denoise
from dare_core.diffusion.mixture import MixedForwards
from dare_core.diffusion.rollouts import evaluating, rollout_of, sample_rows
from dare_core.diffusion.trees import decode_tree
from dare_core.interfaces import ModelAdapter, RolloutBackend, RolloutRequest
from dare_core.rollout.config import NativeSection
from dare_core.types import Address, DecodingSettings, Rollout


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
            if request.tree is None:
                result = self._decode(rows.tokens, request.settings, request.address, rows.sample_id, request)
            else:
                # Whole rows are watched and recorded, not parts of a tree.
                decode = partial(self._decode, request=None)
                result = decode_tree(rows, request, request.tree, self.adapter.facts, decode)
        return rollout_of(self.adapter, rows, result, request.policy_version)

    def _decode(
        self,
        tokens: Sequence[Sequence[int]],
        settings: DecodingSettings,
        address: Address,
        sample_id: Tensor,
        request: RolloutRequest | None,
    ) -> DenoiseResult:
        mixture = None if request is None else request.mixture
        result = denoise(
            self.adapter,
            tokens,
            settings,
            address,
            sample_id,
            sampler=self.config.sampler,
            ties=self.config.ties,
            snapshots=request is not None and request.snapshots,
            rows_per_batch=self.config.rows_per_batch,
            cache=self.config.cache == "auto",
            forwards=None if mixture is None else partial(MixedForwards, self.adapter, mixture),
            watch=None if request is None else request.watch,
        )
        # Each step evaluates both policies.
        return result if mixture is None else replace(result, forwards=2 * result.forwards)
