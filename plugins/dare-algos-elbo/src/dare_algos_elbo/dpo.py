"""Direct preference optimisation of diffusion language models on ELBO estimates.

DPO (Rafailov et al. 2023, arXiv:2305.18290, eq. 7) with log-likelihoods replaced by estimates B of the ELBO
(VRPO, Zhu et al. 2025, arXiv:2505.19223, section 3)::

    s = beta [ (B(y_w) - B_ref(y_w)) - (B(y_l) - B_ref(y_l)) ] / c
    L = mean over pairs of  -(1 - e) log sigmoid(s) - e log sigmoid(-s)  +  w_sft mean over pairs of -B(y_w) / |y_w|

with c = ``score_divisor`` (1 if null) and e = ``label_smoothing``. The estimates are of one set of views, so the live
and the reference policy meet the same noise; loss and gradient are biased through the logarithm, the less so the
smaller the variance of s. VRPO is this loss with the estimator that makes that variance small.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dare_algos_elbo.config import DpoSection
from dare_algos_elbo.estimators.draws import target_lengths
from dare_core.interfaces import Algorithm, Separable
from dare_core.types import LossInputs, LossOutput, Metric, PairRows


def pair_indices(rows: PairRows) -> tuple[Tensor, Tensor]:
    """Rows [P] of the chosen and [P] of the rejected answers, pair by pair.

    Raises:
        ValueError: a group does not hold as many chosen as rejected rows.
    """
    order = rows.group.argsort(stable=True)
    chosen, rejected = order[rows.preferred[order]], order[~rows.preferred[order]]
    if len(chosen) != len(rejected) or not torch.equal(rows.group[chosen], rows.group[rejected]):
        raise ValueError("every group of a batch of pairs holds one chosen and one rejected row")
    return chosen, rejected


def preference_loss(score: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """[P] losses of scores s [P]."""
    return -(1 - label_smoothing) * logsigmoid(score) - label_smoothing * logsigmoid(-score)


class Dpo(Algorithm):
    """Preference loss on estimates per row [B] of pairs."""

    separable_by: ClassVar[Separable | None] = "group"
    config: DpoSection

    @property
    def uses_old_policy(self) -> bool:
        """The ratio is to the reference policy."""
        return False

    @property
    def uses_reference(self) -> bool:
        """Unless the score leaves it out."""
        return not self.config.reference_free

    @property
    def fixed_views(self) -> bool:
        """As the section says."""
        return self.config.views == "fixed"

    @property
    def reference_cache(self) -> str | None:
        """Of the section."""
        return self.config.reference_cache

    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss above.

        Raises:
            TypeError: the rows are not pairs, or the estimate is not per row.
        """
        if not isinstance(inputs.rows, PairRows) or inputs.live.per != "row":
            raise TypeError(f"{type(self).__name__} needs pairs and an estimate per row, not per {inputs.live.per}")
        chosen, rejected = pair_indices(inputs.rows)
        gain = inputs.live.value / (self.config.score_divisor or 1.0)
        if inputs.reference is not None and self.uses_reference:
            gain = gain - inputs.reference.value.detach() / (self.config.score_divisor or 1.0)
        reward = self.config.beta * gain
        score = reward[chosen] - reward[rejected]
        loss = preference_loss(score, self.config.label_smoothing).mean()
        length = target_lengths(inputs.views, inputs.rows)[chosen].clamp(min=1)
        nelbo = -inputs.live.value[chosen] / length
        if self.config.sft_weight:
            loss = loss + self.config.sft_weight * nelbo.mean()
        return LossOutput(loss=loss, metrics=self._metrics(score, reward[chosen], reward[rejected], nelbo))

    @staticmethod
    def _metrics(score: Tensor, chosen: Tensor, rejected: Tensor, nelbo: Tensor) -> dict[str, Metric]:
        shown = {
            "pair_accuracy": (score > 0).to(score.dtype),
            "margin": score,
            "chosen_reward": chosen,
            "rejected_reward": rejected,
            "chosen_nelbo_per_token": nelbo,
        }
        return {name: Metric(float(value.detach().sum()), float(len(value))) for name, value in shown.items()}
