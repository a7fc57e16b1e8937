"""Learning from demonstrations or preference pairs: the online loop without rollouts."""

from __future__ import annotations

from dare_core.loops.inner import InnerUpdates
from dare_core.loops.job import OfflineJob
from dare_core.loops.outcome import Outcome
from dare_core.loops.signals import offline_metrics
from dare_core.loops.update import update


def run(job: OfflineJob) -> Outcome:
    """Train until the planned steps are done, a stop rule holds or someone interrupts.

    Raises:
        NonFiniteError: a score, loss, gradient or weight is not finite, and the engine is told to stop.
    """
    learner = job.learner
    with job.session as session:
        for step in session.steps():
            rows = job.rows_of(step)
            with session.timed("score"):
                inner = InnerUpdates(learner, rows, step)
            with session.timed("update"):
                for objective in inner.objectives():
                    inner.done(update(learner.engine, objective, learner.mode))
            session.finish(step, offline_metrics(rows, inner.results, job.epoch(step)))
        return session.outcome()
