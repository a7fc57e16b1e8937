"""Reinforcement learning. The whole loop is this page: it knows no model and no algorithm by name."""

from __future__ import annotations

from dare_core.loops.inner import InnerUpdates
from dare_core.loops.job import OnlineJob
from dare_core.loops.outcome import Outcome
from dare_core.loops.sampling import sample
from dare_core.loops.signals import online_metrics, sample_lines


def run(job: OnlineJob) -> Outcome:
    """Train until the planned steps are done, a stop rule holds or someone interrupts.

    Raises:
        NonFiniteError: a score, loss, gradient or weight is not finite, and the engine is told to stop.
        UserError: what was planned turns out not to fit, for example a prompt longer than the model.
        DareError: the reward failed on more rows than the run allows.
    """
    learner = job.learner
    with job.session as session:
        for step in session.steps():
            sampled = sample(job, step)
            selection = learner.algorithm.select(sampled.batch, sampled.advantages)
            with session.timed("score"):
                inner = InnerUpdates(learner, sampled.batch, step, sampled.advantages, selection)
            with session.timed("update"):
                for objective in inner.objectives():
                    inner.done(learner.update(objective))
            job.backend.sync(learner.engine.weights(), version=step + 1)
            session.finish(
                step,
                {
                    **online_metrics(sampled.rollout, sampled.verdicts, sampled.advantages, inner.results),
                    **sampled.metrics,
                },
                sample_lines(sampled.prompts, sampled.rollout, sampled.verdicts, sampled.row_advantages()),
            )
        return session.outcome()
