"""The fastdllm backend."""

from __future__ import annotations

import torch

from dare_core.api import Problem, UserError
from dare_core.diffusion.canvas import Canvas
from dare_core.diffusion.denoise import DenoiseResult, denoise
from dare_core.diffusion.forwards import RowForwards
from dare_core.diffusion.rollouts import SampleRows, evaluating, rollout_of, sample_rows
from dare_core.interfaces import ModelAdapter, RolloutBackend, RolloutRequest
from dare_core.types import AttentionLayout, Rollout, Watch
from dare_fastdllm.config import FastSection
from dare_fastdllm.credit import CreditRows, CreditRule
from dare_fastdllm.windows import WholeRows, WindowPolicy, window_rows


class FastBackend(RolloutBackend):
    """Generates with the live adapter against approximate caches.

    Commit steps give back what the model saw at every step, as with the native backend. Log-probabilities at commit
    come from stale states or carry credit, so the rollout holds none then.
    """

    exactness = "approximate"
    config: FastSection

    def __init__(self, config: FastSection, adapter: ModelAdapter) -> None:
        super().__init__(config, adapter)
        if config.cache == "none" and config.credit is None:
            self.exactness = "exact"

    def generate(self, request: RolloutRequest) -> Rollout:
        """See the interface.

        Raises:
            UserError: snapshots are asked for, which need forwards of whole rows.
        """
        if request.snapshots:
            message = "fastdllm keeps no snapshots: its forwards do not see whole rows"
            raise UserError(Problem(message, "rollout.kind", hint="take the native backend"))
        rows = sample_rows(self.adapter, request)
        with evaluating(self.adapter.module):
            result = self._decoded(request, rows, exact=self.exactness == "exact", watch=request.watch)
            agreement = self._agreement(request, rows, result)
        approximate = self.exactness != "exact"
        return rollout_of(
            self.adapter, rows, result, request.policy_version, approximate=approximate, agreement=agreement
        )

    def _forwards(self, canvas: Canvas, layout: AttentionLayout, rows: int) -> RowForwards:
        config = self.config
        if config.cache == "none":
            forwards: RowForwards = WholeRows(self.adapter, canvas, layout)
        else:
            policy = WindowPolicy(config.cache, config.refresh_every)
            forwards = window_rows(self.adapter, policy, canvas, layout, rows)
        if config.credit is None:
            return forwards
        return CreditRows(forwards, canvas, CreditRule(**config.credit.model_dump()))

    def _decoded(
        self, request: RolloutRequest, rows: SampleRows, *, exact: bool, watch: Watch | None = None
    ) -> DenoiseResult:
        return denoise(
            self.adapter,
            rows.tokens,
            request.settings,
            request.address,
            rows.sample_id,
            sampler=self.config.sampler,
            ties=self.config.ties,
            rows_per_batch=self.config.rows_per_batch,
            forwards=None if exact else self._forwards,
            watch=watch,
        )

    def _agreement(self, request: RolloutRequest, rows: SampleRows, result: DenoiseResult) -> float | None:
        """Share of response tokens of the first rows that the same protocol without cache gives too."""
        checked = rows[: self.config.check_agreement]
        if not checked.tokens:
            return None
        exact = self._decoded(request, checked, exact=True)
        count, width = exact.tokens.shape
        both = exact.response & result.response[:count, :width]
        equal = (exact.tokens == result.tokens[:count, :width]) & both
        either = torch.maximum(exact.response.sum(dim=1), result.response[:count].sum(dim=1))
        return float(equal.sum() / either.sum().clamp(min=1))
