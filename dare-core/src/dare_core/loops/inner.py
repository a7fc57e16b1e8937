"""Inner updates: the optimizer steps that reuse one batch.

One plan is scored three times, under the live, the old and the reference policy, on the same views. Where an
algorithm wants fresh views for each inner update, all plans are drawn, and scored under the old and the reference
policy, before the first optimizer step: afterwards the old policy is gone. A value model's values are scored then too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dare_core.interfaces import Algorithm, Engine, LikelihoodEstimator, PlanContext
from dare_core.interfaces.engine import Objective, PolicyName
from dare_core.loops.references import ReferenceEstimates
from dare_core.loops.update import Updated, UpdateMode, direct_parts, update
from dare_core.types import (
    Address,
    Advantages,
    AttentionLayout,
    Estimate,
    ModelFacts,
    Progress,
    Rows,
    Scores,
    Views,
)


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
        value_engine: trains the value model; None = there is none.
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
    value_engine: Engine | None = None

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

    def estimate(self, views: Views, rows: Rows, policy: PolicyName, parts: Sequence[Tensor] | None = None) -> Estimate:
        """The estimate of one policy on these views, without gradient; ``parts`` as in :meth:`Engine.score`."""
        return self.estimator.reduce(views, self.engine.score(views, policy, parts=parts), rows)

    def reference(self, objective: Objective) -> Estimate | None:
        """The reference policy's estimate on an objective's views, if the algorithm reads it; in the parts that the
        update will take, so that equal policies have equal scores to the last bit."""
        if not self.algorithm.uses_reference:
            return None
        if self.references is not None:
            return self.references.estimate(objective.rows, objective.views)
        parts = direct_parts(self.engine, objective, self.mode)
        return self.estimate(objective.views, objective.rows, "reference", parts)

    def update(self, objective: Objective) -> Updated:
        """One optimizer step of the policy, and one of the value model where there is one.

        Raises:
            NonFiniteError, UserError: see :func:`dare_core.loops.update.update`.
        """
        done = update(self.engine, objective, self.mode)
        if self.value_engine is None:
            return done
        # Before the first inner update the value model's scores are those the batch began with.
        known = objective.values if objective.progress.inner == 0 else None
        scores = None if known is None else Scores(logp=known.new_zeros(known.shape), value=known)
        return replace(done, value=update(self.value_engine, replace(objective, role="value"), self.mode, scores))


class InnerUpdates:
    """The objectives of one batch's inner updates, in order.

    ::

        for objective in updates.objectives():
            updates.done(learner.update(objective))

    Building it draws all views and scores them under the reference, the value model and, as far as needed, the old
    policy.
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
        self._old: Estimate | None = None
        self.results: list[Updated] = []
        count = learner.algorithm.inner_updates
        if learner.algorithm.fresh_views:
            self._plans = [self._draw(inner, count, selection) for inner in range(count)]
        else:
            self._plans = [self._draw(0, count, selection)] * count

    def objectives(self) -> Iterator[Objective]:
        """One objective per inner update; report each through :meth:`done` before asking for the next."""
        for inner, plan in enumerate(self._plans):
            yield replace(
                plan,
                progress=replace(plan.progress, inner=inner),
                old=plan.old if self._learner.algorithm.fresh_views else self._old,
            )

    def done(self, result: Updated) -> None:
        """Keep what an update gave. The scores before the first step that changed a weight are the old policy's."""
        if not self._learner.algorithm.fresh_views and self._old is None and result.report.applied:
            shared = self._plans[0].views
            self._old = self._learner.estimator.reduce(shared, result.scores, self._rows).detached()
        self.results.append(result)

    def _draw(self, inner: int, count: int, selection: Tensor | None) -> Objective:
        learner = self._learner
        plan = Objective(
            estimator=learner.estimator,
            algorithm=learner.algorithm,
            rows=self._rows,
            views=learner.plan(self._rows, self._step, inner, selection),
            progress=Progress(self._step, learner.total_steps, inner, count),
            advantages=self._advantages,
        )
        later = inner > 0 and learner.algorithm.uses_old_policy
        old = learner.estimate(plan.views, self._rows, "live") if later else None
        return replace(plan, old=old, reference=learner.reference(plan), values=self._values(plan))

    def _values(self, plan: Objective) -> Tensor | None:
        engine = self._learner.value_engine
        if engine is None:
            return None
        parts = direct_parts(engine, plan, self._learner.mode)
        return engine.score(plan.views, "live", parts=parts).value
