"""Learning from demonstrations or preference pairs: the online loop without rollouts."""

from __future__ import annotations

from dare_core.loops.inner import InnerUpdates
from dare_core.loops.job import OfflineJob
from dare_core.loops.outcome import Outcome
from dare_core.loops.signals import offline_metrics

_BATCHES_BETWEEN_WRITES = 256


def prepare_references(job: OfflineJob, steps: int) -> None:
    """Work out the reference estimates that ``steps`` training steps will ask for and that are not kept yet.

    Called before the first optimizer step, and before a checkpoint is restored: the live policy is then the reference.

    Raises:
        UserError: rows do not fit, or the estimator gives no estimate per row.
    """
    learner, references = job.learner, job.learner.references
    if references is None:
        return
    wanted = sorted({index for step in range(steps) for index in job.order.batch(step)})
    size = job.order.batch_size
    with job.session.timed("score"):
        for number, start in enumerate(range(0, len(wanted), size)):
            rows = job.rows_from(wanted[start : start + size], 0)
            if references.misses(rows):
                views = learner.plan(rows, 0, 0, None)
                references.keep(rows, views, learner.estimate(views, rows, "live"))
                if number % _BATCHES_BETWEEN_WRITES == _BATCHES_BETWEEN_WRITES - 1:
                    references.write()
    references.write()


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
                    inner.done(learner.update(objective))
            session.finish(step, offline_metrics(rows, inner.results, job.epoch(step)))
        return session.outcome()
