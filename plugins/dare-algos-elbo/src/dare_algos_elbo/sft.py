"""Supervised fine-tuning of diffusion language models (LLaDA, Nie et al. 2025, arXiv:2502.09992, eq. 5).

The negative ELBO of each answer, divided per row by its length A_b and averaged over the batch::

    L = (1/B) sum_b (1/A_b) sum_{i hidden in b} -w_b log p(y_i | view)

A_b counts the answer's tokens, with the end tokens that fill it where ``supervise_padding`` is on (LLaDA).
``loss_normalizer`` offers other divisors over the whole batch: all answer tokens (SDAR, generic trainers), the hidden
ones (Dream, LLaDA2), or the rows. With weights 1/t, dividing by the hidden tokens counts 1/t twice, since about t A_b
tokens are hidden; the unified framework of arXiv:2604.04215 does so. On rows with an empty prompt this is LLaDA's
pre-training loss (eq. 3). Weights, times and masks are the estimator's.

``confidence_weight`` adds LLaDA2's term (arXiv:2512.15745): the mean entropy at those hidden tokens of the batch whose
most probable token is the right one, so that what is known becomes certain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_algos_elbo.config import SftSection
from dare_algos_elbo.estimators.draws import target_lengths
from dare_core.interfaces import Algorithm, Separable
from dare_core.objectives.reductions import per_sequence
from dare_core.types import LossInputs, LossOutput, Metric, Scores, Views


def sure_entropy(views: Views, scores: Scores) -> Tensor:
    """Mean entropy (nats) of scored targets that are the most probable token; 0 with a graph if there are none.

    Raises:
        TypeError: the scores were taken without entropies.
    """
    if scores.entropy is None or scores.correct is None:
        raise TypeError("a confidence term needs scores with entropies")
    right = views.scored & scores.correct
    return torch.where(right, scores.entropy, 0.0).sum() / right.sum().clamp(min=1)


class Sft(Algorithm):
    """Negative ELBO of demonstrations; works on estimates per row [B]."""

    config: SftSection

    @property
    def separable_by(self) -> Separable | None:
        """By row, unless a confidence term divides by how many tokens of the batch the model gets right."""
        return None if self.config.confidence_weight else "row"

    @property
    def uses_entropy(self) -> bool:
        """For the confidence term."""
        return self.config.confidence_weight > 0

    @property
    def uses_old_policy(self) -> bool:
        """A likelihood has no ratio."""
        return False

    @property
    def supervise_padding(self) -> bool:
        """Of the section."""
        return self.config.supervise_padding

    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss above.

        Raises:
            TypeError: the estimate is not per row.
        """
        if inputs.live.per != "row":
            raise TypeError(f"sft needs an estimate per row, not per {inputs.live.per}")
        nelbo = -inputs.live.value
        length = target_lengths(inputs.views, inputs.rows)
        counted = inputs.live.mask
        # Every row has the same number of views.
        noised = inputs.views.scored.sum() * len(inputs.rows) / max(1, len(inputs.views))
        shown = nelbo.detach()
        metrics = {
            "nelbo_per_token": Metric(float(shown.sum()), float(length.sum())),
            "nelbo_per_row": Metric(float(shown.sum()), float(counted.sum())),
            "noised_share": Metric(float(noised), float(length.sum())),
        }
        loss = self._divided(nelbo, length, noised, counted)
        if self.config.confidence_weight:
            entropy = sure_entropy(inputs.views, inputs.scores)
            loss = loss + self.config.confidence_weight * entropy
            metrics["sure_entropy"] = Metric(float(entropy.detach()), 1.0)
        return LossOutput(loss=loss, metrics=metrics)

    def _divided(self, nelbo: Tensor, length: Tensor, noised: Tensor, counted: Tensor) -> Tensor:
        kind = self.config.loss_normalizer
        if kind == "sequence":
            return per_sequence(nelbo, length, counted)
        if kind == "rows":
            return per_sequence(nelbo, 1.0, counted)
        tokens = length.sum() if kind == "supervised-tokens" else noised
        # Without a hidden token the sum is 0 whatever the divisor.
        return nelbo.sum() / tokens.masked_fill(tokens == 0, 1)
