"""Algorithms: advantages and a loss on small tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from dare_core.types import Advantages, LossInputs, LossOutput, Rollout, TreeShape, ValueInputs, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from dare_core.api import SectionConfig
    from dare_core.spec.sections import ValueModelSection


#: What a term of a loss depends on at most.
Separable = Literal["line", "row", "group"]


class Algorithm(ABC):
    """What differs between methods: how advantages and the loss are formed. Built as ``Algorithm(config)``.

    Its component record says which data it needs (``prompts``: the online loop; ``demonstrations`` or
    ``pairs``: the offline loop) and which estimates. A loss is a pure function of its inputs; it never sees
    the model. Sums and divisors are taken over the whole batch it is given.
    """

    #: The loss is a sum of terms that each depend on one line of the estimate (``line``: a row's, or a view's
    #: where estimates are per view), on the scores of one row (``row``), of one group (``group``), or on everything
    #: (``None``). Divisors may use masks, lengths and advantages of the whole batch, not scores. The update uses it
    #: to backward part by part without a second pass.
    separable_by: ClassVar[Separable | None] = None

    def __init__(self, config: SectionConfig) -> None:
        self.config = config

    @property
    def inner_updates(self) -> int:
        """Optimizer steps that reuse one rollout (mu)."""
        return 1

    @property
    def reference_share(self) -> float:
        """Share of the reference policy's logits in those that rollouts are sampled from; 0 = only the live ones."""
        return 0.0

    @property
    def refill_rounds(self) -> int:
        """Rounds of further prompts, at most, that replace groups without a usable advantage in a step's batch."""
        return 0

    @property
    def fresh_views(self) -> bool:
        """Whether each inner update draws its own views. All are drawn, and scored under the old and the
        reference policy, before the first optimizer step."""
        return False

    @property
    def uses_old_policy(self) -> bool:
        """Whether the loss reads ``inputs.old``."""
        return True

    @property
    def uses_reference(self) -> bool:
        """Whether the loss reads ``inputs.reference`` (a reference policy is then kept)."""
        return False

    @property
    def uses_entropy(self) -> bool:
        """Whether the loss reads ``inputs.scores.entropy``."""
        return False

    @property
    def fixed_views(self) -> bool:
        """Offline algorithms: whether a row has the same views in every epoch, and in every run with this seed."""
        return False

    @property
    def reference_cache(self) -> str | None:
        """File in which estimates of the reference policy are kept; needs :attr:`fixed_views` and one inner update.
        No reference policy is then held beside the live one."""
        return None

    @property
    def value_model(self) -> ValueModelSection | None:
        """How a value model is started and trained beside the policy, by :meth:`value_loss`; None = there is none."""
        return None

    @property
    def tree(self) -> TreeShape | None:
        """How the responses to a prompt branch off each other; None = they are independent."""
        return None

    @property
    def supervise_padding(self) -> bool:
        """Offline algorithms: whether each answer is filled with end tokens to the longest row of its batch and
        the filling belongs to ``rows.response``, so that it is corrupted, scored and counted. Otherwise padding
        lies outside the rows. The offline loop builds rows accordingly."""
        return False

    def advantages(self, rollout: Rollout, verdicts: Sequence[Verdict]) -> Advantages:
        """Advantages of the rollout's rows (or snapshots) from their verdicts, one per row in row order.

        Rows whose verdict has no score are not usable and enter no mean.
        """
        raise TypeError(f"{type(self).__name__} is not a reinforcement-learning algorithm: it has no advantages")

    def select(self, rollout: Rollout, advantages: Advantages) -> Tensor | None:
        """[S] int64 snapshots to train on, most important first; None for algorithms that plan from rows."""
        return None

    @abstractmethod
    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss to minimise, differentiable in ``inputs.live`` and ``inputs.scores``."""

    def value_loss(self, inputs: ValueInputs) -> LossOutput:
        """The value model's loss to minimise, differentiable in ``inputs.live``; what ``separable_by`` says holds for
        it too, with views as lines. Called for algorithms with a :attr:`value_model`, once per inner update."""
        raise TypeError(f"{type(self).__name__} has no loss for a value model")
