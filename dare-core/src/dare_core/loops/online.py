"""Reinforcement learning. The whole loop is this page: it knows no model and no algorithm by name."""

from __future__ import annotations

from dare_core.loops.inner import InnerUpdates
from dare_core.loops.job import OnlineJob
from dare_core.loops.outcome import Outcome
from dare_core.loops.signals import check_verdicts, online_metrics, rollout_gap, sample_lines, warn_of_collapse


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
            prompts = job.prompts_of(step)
            with session.timed("rollout"):
                rollout = job.backend.generate(job.request(prompts, step))
                gap = rollout_gap(learner, rollout, job.settings, step)
            with session.timed("reward"):
                repeated = [prompt for prompt in prompts for _ in range(job.samples)]
                verdicts = job.judged(repeated, rollout)
            check_verdicts(verdicts, rollout, step, job.max_error_share)
            warn_of_collapse(rollout, job.settings)
            advantages = learner.algorithm.advantages(rollout, verdicts)
            selection = learner.algorithm.select(rollout, advantages)
            with session.timed("score"):
                inner = InnerUpdates(learner, rollout, step, advantages, selection)
            with session.timed("update"):
                for objective in inner.objectives():
                    inner.done(learner.update(objective))
            job.backend.sync(learner.engine.weights(), version=step + 1)
            session.finish(
                step,
                online_metrics(rollout, verdicts, advantages, inner.results) | gap,
                sample_lines(repeated, rollout, verdicts, advantages),
            )
        return session.outcome()
