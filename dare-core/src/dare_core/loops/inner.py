"""Inner updates: the optimizer steps that reuse one batch.

One plan is scored three times, under the live, the old and the reference policy, on the same views. Where an
algorithm wants fresh views for each inner update, all plans are drawn, and scored under the old and the reference
policy, before the first optimizer step: afterwards the old policy is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from dare_core.interfaces import Algorithm, Engine, LikelihoodEstimator, PlanContext
from dare_core.interfaces.engine import Objective, PolicyName
from dare_core.loops.references import ReferenceEstimates
from dare_core.loops.update import Updated, UpdateMode
from dare_core.types import Address, Advantages, AttentionLayout, Estimate, ModelFacts, Progress, Rows, Views


@dataclass(frozen=True, kw_only=True)
class Learner:
    """What turns rows into optimizer steps.

    Attributes:
        algorithm, estimator, engine: as chosen.
        facts: of the model.
        layout: how views attend: the model's layout, with the block length of the rollout.
        seed: the run's seed.
        total_steps: training steps of the whole run.
        mode: how gradients are gathered.
        temperature: at which rollouts are sampled; 1 offline.
        references: estimates of the reference policy that were worked out before; None = it is scored at each step.
    """

    algorithm: Algorithm
    estimator: LikelihoodEstimator
    engine: Engine
    facts: ModelFacts
    layout: AttentionLayout
    seed: int
    total_steps: int
    mode: UpdateMode
    temperature: float = 1.0
    references: ReferenceEstimates | None = None

    def plan(self, rows: Rows, step: int, inner: int, selection: Tensor | None) -> Views:
        """The views of one inner update."""
        address = Address(self.seed, f"corruption/inner-{inner}", step)
        if self.algorithm.fixed_views:
            address = Address(self.seed, f"corruption/fixed/inner-{inner}")
        context = PlanContext(
            facts=self.facts,
            address=address,
            layout=self.layout,
            selection=selection,
            temperature=self.temperature,
        )
        return self.estimator.plan(rows, context)

    def estimate(self, views: Views, rows: Rows, policy: PolicyName) -> Estimate:
        """The estimate of one policy on these views, without gradient."""
        return self.estimator.reduce(views, self.engine.score(views, policy), rows)

    def reference(self, views: Views, rows: Rows) -> Estimate | None:
        """The reference policy's estimate on these views, if the algorithm reads it."""
        if not self.algorithm.uses_reference:
            return None
        if self.references is not None:
            return self.references.estimate(rows, views)
        return self.estimate(views, rows, "reference")


@dataclass(kw_only=True)
class _Plan:
    views: Views
    old: Estimate | None
    reference: Estimate | None


class InnerUpdates:
    """The objectives of one batch's inner updates, in order.

    ::

        for objective in updates.objectives():
            updates.done(update(engine, objective, mode))

    Building it draws all views and scores them under the reference and, as far as needed, the old policy.
    """

    def __init__(
        self,
        learner: Learner,
        rows: Rows,
        step: int,
        advantages: Advantages | None = None,
        selection: Tensor | None = None,
    ) -> None:
        self._learner = learner
        self._rows = rows
        self._advantages = advantages
        self._step = step
        self.results: list[Updated] = []
        count = learner.algorithm.inner_updates
        if learner.algorithm.fresh_views:
            self._plans = [self._draw(inner, selection) for inner in range(count)]
        else:
            self._plans = [self._draw(0, selection)] * count

    def objectives(self) -> Iterator[Objective]:
        """One objective per inner update; report each through :meth:`done` before asking for the next."""
        for inner, plan in enumerate(self._plans):
            yield Objective(
                estimator=self._learner.estimator,
                algorithm=self._learner.algorithm,
                rows=self._rows,
                views=plan.views,
                progress=Progress(self._step, self._learner.total_steps, inner, len(self._plans)),
                advantages=self._advantages,
                old=plan.old,
                reference=plan.reference,
            )

    def done(self, result: Updated) -> None:
        """Keep what an update gave. The scores before the first step that changed a weight are the old policy's."""
        shared = self._plans[0]
        if not self._learner.algorithm.fresh_views and shared.old is None and result.report.applied:
            shared.old = self._learner.estimator.reduce(shared.views, result.scores, self._rows).detached()
        self.results.append(result)

    def _draw(self, inner: int, selection: Tensor | None) -> _Plan:
        learner = self._learner
        views = learner.plan(self._rows, self._step, inner, selection)
        later = inner > 0 and learner.algorithm.uses_old_policy
        return _Plan(
            views=views,
            old=learner.estimate(views, self._rows, "live") if later else None,
            reference=learner.reference(views, self._rows),
        )
