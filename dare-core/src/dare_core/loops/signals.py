"""What a step says about itself: is there anything to learn, does it learn, do rollout and training agree?"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dare_core.diffusion.seeds import uniforms
from dare_core.diffusion.trajectory import state_before
from dare_core.errors import DareError
from dare_core.loops.inner import Learner
from dare_core.loops.update import Updated
from dare_core.objectives.advantages import score_metrics, verdict_scores
from dare_core.rollout.statistics import collapsed_groups, rollout_statistics
from dare_core.run.metrics import MetricLog
from dare_core.types import (
    Address,
    Advantages,
    DecodingSettings,
    EosRule,
    Metric,
    Prompt,
    Rollout,
    Rows,
    Verdict,
    VerdictStatus,
    Views,
)

_log = logging.getLogger("dare")


def online_metrics(
    rollout: Rollout, verdicts: Sequence[Verdict], advantages: Advantages, updates: Sequence[Updated]
) -> dict[str, float]:
    """Metrics of a step of reinforcement learning: ``rollout/*``, ``reward/*`` (``zero_variance_share`` of groups
    included), ``verdicts/<status>`` counts, ``advantage/*``, and those of :func:`update_metrics`."""
    scores, usable = verdict_scores(verdicts)
    rewards = score_metrics(scores, rollout.group, usable)
    named = {f"reward/{name.removeprefix('reward_')}": value for name, value in rewards.items()}
    counts = Counter(verdict.status for verdict in verdicts)
    statuses = {f"verdicts/{status.value}": float(counts[status]) for status in VerdictStatus}
    own = {k: v for k, v in advantages.statistics.items() if k not in rewards}
    return {
        **rollout_statistics(rollout),
        **named,
        "reward/correct_rate": counts[VerdictStatus.CORRECT] / max(1, len(verdicts)),
        **statuses,
        **{f"advantage/{name}": value for name, value in own.items()},
        **update_metrics(updates),
    }


def offline_metrics(rows: Rows, updates: Sequence[Updated], epoch: float) -> dict[str, float]:
    """Metrics of a step on demonstrations or pairs: ``data/*`` and those of :func:`update_metrics`."""
    return {
        "data/epoch": epoch,
        "data/tokens": float(rows.valid.sum()),
        "data/response_tokens": float(rows.response.sum()),
        **update_metrics(updates),
    }


def update_metrics(updates: Sequence[Updated]) -> dict[str, float]:
    """``loss``, ``algorithm/*``, ``optim/*`` and, of a value model, ``value/*``, over the step's inner updates; skipped
    ones only count as such."""
    log = MetricLog()
    for done in updates:
        log.put({"optim/lr": done.report.learning_rate})
        if done.report.applied:
            log.add({"loss": Metric(float(done.loss.loss), 1.0), "optim/grad_norm": Metric(done.report.grad_norm, 1.0)})
            log.add(done.loss.metrics, prefix="algorithm/")
            log.put(done.report.metrics, prefix="optim/")
        if done.value is not None:
            log.put({"value/lr": done.value.report.learning_rate})
            if done.value.report.applied:
                norm = Metric(done.value.report.grad_norm, 1.0)
                log.add({"value/loss": Metric(float(done.value.loss.loss), 1.0), "value/grad_norm": norm})
                log.add(done.value.loss.metrics, prefix="value/")
    skipped = sum(not done.report.applied for done in updates)
    return log.values() | {"optim/skipped": float(skipped), "optim/updates": float(len(updates) - skipped)}


def check_verdicts(verdicts: Sequence[Verdict], rollout: Rollout, step: int, most: float) -> None:
    """Stop where the reward itself fails too often.

    Raises:
        DareError: more than the share ``most`` of the verdicts are errors; names rows and the first reason.
    """
    failed = [row for row, verdict in enumerate(verdicts) if verdict.status == VerdictStatus.ERROR]
    if len(failed) > most * len(verdicts):
        rows = ", ".join(repr(rollout.example_id[row]) for row in failed[:4])
        raise DareError(
            f"training step {step + 1}: the reward failed on {len(failed)} of {len(verdicts)} responses, more than "
            f"run.max_error_share {most:g} allows; rows {rows}; first reason: {verdicts[failed[0]].detail}"
        )


def warn_of_collapse(rollout: Rollout, settings: DecodingSettings) -> None:
    """Warn of groups whose responses are all equal although the temperature is above 0."""
    collapsed = collapsed_groups(rollout) if settings.temperature > 0 else 0
    if collapsed:
        _log.warning(
            "all responses are equal in %d of %d groups although rollout.temperature is %g; they teach nothing",
            collapsed,
            len(set(rollout.group.tolist())),
            settings.temperature,
        )


def rollout_gap(learner: Learner, rollout: Rollout, settings: DecodingSettings, step: int) -> dict[str, float]:
    """How far the backend's log-probabilities lie from the trainer's (``rollout/logp_gap_mean`` and ``_max``, nats).

    One denoising forward of each row, drawn by address, is replayed under the weights about to be trained, and the
    tokens it committed are compared. Empty where the backend records no log-probabilities or commit steps, or where
    guidance or suppression make them those of another distribution.
    """
    comparable = _comparable(rollout, settings) and not learner.algorithm.reference_share
    views = _replayed_forward(learner, rollout, step) if comparable else None
    if views is None or rollout.logp is None:
        return {}
    trained = learner.engine.score(views, "live").logp.to(torch.float64)
    gap = (trained - rollout.logp[views.row].to(torch.float64)).abs()[views.scored]
    return {"rollout/logp_gap_mean": float(gap.mean()), "rollout/logp_gap_max": float(gap.max())}


def _comparable(rollout: Rollout, settings: DecodingSettings) -> bool:
    plain = not settings.guidance and settings.eos_rule in (EosRule.FILL, EosRule.STOP, EosRule.STOP_EARLY)
    return plain and rollout.logp is not None and rollout.trace is not None and rollout.trace.replayable


def _replayed_forward(learner: Learner, rollout: Rollout, step: int) -> Views | None:
    if rollout.trace is None or learner.facts.mask_id is None:
        return None
    committed = torch.where(rollout.response, rollout.trace.commit_step, -1)
    row = (committed >= 0).any(dim=1).nonzero()[:, 0]
    if not len(row):
        return None
    share = uniforms(Address(learner.seed, "logp-gap", step), rollout.sample_id[row], 0, 1)[:, 0]
    forward = (share * (committed[row].amax(dim=1) + 1)).long()
    scored = committed[row] == forward[:, None]
    tokens, valid = rollout.tokens[row], rollout.valid[row]
    inputs = state_before(tokens, committed[row], rollout.response[row], forward, learner.facts.mask_id)
    views = Views(
        inputs=inputs,
        targets=tokens,
        valid=valid,
        scored=scored,
        weight=scored.to(torch.float32),
        row=row,
        draw=forward,
        prompt_length=rollout.prompt_length[row],
        layout=learner.layout,
    )
    return views if bool(scored.any()) else None


def sample_lines(
    prompts: Sequence[Prompt], rollout: Rollout, verdicts: Sequence[Verdict], advantages: Sequence[float | None]
) -> list[Mapping[str, Any]]:
    """What samples/ keeps of each response; ``advantages`` of each, None where it has none or is not trained on."""
    return [
        {
            "id": prompt.id,
            "sample": int(rollout.sample_id[row]),
            "prompt": prompt.text
            if prompt.text is not None
            else [{"role": m.role, "content": m.content} for m in prompt.messages],
            "reference": prompt.reference,
            "response": rollout.text[row],
            "finish": rollout.finish[row],
            "score": verdict.score,
            "status": verdict.status.value,
            "detail": verdict.detail,
            "parts": dict(verdict.parts),
            "advantage": advantages[row],
        }
        for row, (prompt, verdict) in enumerate(zip(prompts, verdicts, strict=True))
    ]
