"""The update: exact for every algorithm, in memory that does not depend on the number of views.

Two passes. (1) Score all views without gradient; at the first inner update these scores *are* the old policy's, so
the ratio is exactly 1. (2) Take the loss on the scores as small leaf tensors; its backward gives dL/dscore [N,L].
(3) Replay the views in micro-batches and backward ``sum(dL/dscore * score)``. By the chain rule the gradient is that
of one pass over everything, for any differentiable loss, as long as both passes compute the same scores (no dropout).

One pass (``direct``). Where the loss is a sum of terms of single views, rows or groups, each such part of the batch can
be scored with gradient and the loss be taken with all other scores held constant: no term crosses parts, so the
gradients add up to the whole. One forward per view is saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dare_core.engine.microbatches import by_token_budget, view_tokens
from dare_core.errors import NonFiniteError, Problem, UserError
from dare_core.interfaces.engine import Engine, Objective, StepReport
from dare_core.types import LossOutput, Scores

UpdateMode = Literal["auto", "direct", "two-pass"]

#: Parts of a one-pass update that ``auto`` takes. Each takes the loss over the scores of all views, some 150 ns per
#: token; a forward without gradient, which two passes cost more, is of the order of 30 us per token, on a small model
#: on a processor as on a large one on a GPU.
MOST_PARTS = 128


@dataclass(frozen=True, kw_only=True)
class Updated:
    """What one optimizer step did.

    Attributes:
        loss: value and metrics of the objective before the step.
        scores: of all views before the step, without gradient.
        report: the optimizer's report.
        value: the same of the value model that is trained beside the policy, or None.
    """

    loss: LossOutput
    scores: Scores
    report: StepReport
    value: Updated | None = None


def update(engine: Engine, objective: Objective, mode: UpdateMode = "auto", scores: Scores | None = None) -> Updated:
    """Gather the objective's gradient and take one optimizer step.

    Args:
        engine: of the model to train.
        objective: its loss.
        mode: how the gradient is gathered.
        scores: of all views under the present weights, where they are known: spares two passes the first one.

    Raises:
        NonFiniteError: a score, loss or gradient is not finite and the engine is told to stop; names tensor or
            module, step and samples.
        UserError: ``direct`` was asked for and the views do not fit.
    """
    parts = direct_parts(engine, objective, mode)
    nothing = torch.zeros(objective.views.inputs.shape, device=objective.views.inputs.device)
    loss, found = LossOutput(loss=nothing.new_full((), float("nan"))), Scores(logp=nothing)
    try:
        if parts is None:
            found = scores or engine.score(objective.views, "live", entropy=objective.algorithm.uses_entropy)
            loss = replay(engine, objective, found)
        else:
            found = engine.accumulate_direct(objective.views, objective, parts)
            loss = _checked(objective(found), objective)
        report = engine.step()
    except NonFiniteError as error:
        report = engine.reject(_located(error, objective))
    return Updated(loss=_detached(loss), scores=found, report=report)


def replay(engine: Engine, objective: Objective, scores: Scores) -> LossOutput:
    """Passes 2 and 3: the loss on ``scores``, and its gradient brought to the parameters through a second forward."""
    leaves = scores.leaves()
    loss = _checked(objective(leaves), objective)
    if loss.loss.requires_grad:
        torch.autograd.backward(loss.loss)
        engine.accumulate(objective.views, leaves.gradients())
    return loss


def direct_parts(engine: Engine, objective: Objective, mode: UpdateMode) -> list[Tensor] | None:
    """Indices [M] of the views of each micro-batch of a one-pass update, or None where two passes are taken.

    Raises:
        UserError: ``direct`` was asked for and the smallest part of the loss does not fit a micro-batch.
    """
    if mode == "two-pass" or not len(objective.views):
        return None
    views = objective.views
    if engine.fits(views):
        return [torch.arange(len(views), device=views.inputs.device)]
    owners = _owners(objective)
    if owners is not None:
        count = torch.bincount(owners)
        cost = torch.zeros_like(count).index_add_(0, owners, view_tokens(views))
        # A single view goes alone, however long, in two passes too.
        if bool(((cost <= engine.token_budget()) | (count == 1)).all()):
            runs = by_token_budget(cost, engine.token_budget())
            if mode == "direct" or len(runs) <= MOST_PARTS:
                return [torch.isin(owners, run).nonzero()[:, 0] for run in runs]
    if mode == "direct":
        raise _does_not_fit(engine, objective)
    return None


def _owners(objective: Objective) -> Tensor | None:
    """[N] int64: the part of the batch, counted from 0, whose loss terms each view enters."""
    smallest = _smallest_part(objective)
    if smallest is None:
        return None
    rows = objective.views.row
    if smallest == "view":
        return torch.arange(len(rows), device=rows.device)
    keys = rows if smallest == "row" else objective.rows.group.to(rows.device)[rows]
    owners: Tensor = torch.unique(keys, return_inverse=True)[1]
    return owners


def _smallest_part(objective: Objective) -> Literal["view", "row", "group"] | None:
    by = objective.algorithm.separable_by
    if by != "line":
        return by
    # A value model's scores are lines of their own, view by view.
    return "view" if objective.role == "value" or objective.estimator.separate_views else "row"


def _does_not_fit(engine: Engine, objective: Objective) -> UserError:
    part = _smallest_part(objective)
    all_views = "all views of the batch, between which this algorithm's loss has terms,"
    what = all_views if part is None else f"the views of one {part}"
    return UserError(
        Problem(
            f"'direct' needs {what} in one micro-batch of {engine.token_budget()} tokens, and they are more",
            path="engine.update",
            hint="use 'auto' or 'two-pass', or raise the micro-batch's token budget",
        )
    )


def _checked(loss: LossOutput, objective: Objective) -> LossOutput:
    if bool(torch.isfinite(loss.loss)):
        return loss
    for name in ("old", "reference"):
        estimate = getattr(objective, name)
        if estimate is not None and not bool(torch.isfinite(estimate.value).all()):
            raise NonFiniteError(f"the loss is not finite, because the {name} policy's estimate is not")
    of = "value model's loss" if objective.role == "value" else "loss"
    raise NonFiniteError(f"the {of} is not finite although all scores are: ratios or weights overflowed")


def _located(error: NonFiniteError, objective: Objective) -> NonFiniteError:
    progress = objective.progress
    where = f"training step {progress.step + 1}, inner update {progress.inner + 1}"
    rows = error.rows or range(len(objective.rows))
    samples = [f"{objective.rows.sample_id[row]} (row '{objective.rows.example_id[row]}')" for row in rows]
    shown = ", ".join(samples[:4]) + (f" and {len(samples) - 4} more" if len(samples) > 4 else "")
    return NonFiniteError(f"{where}: {error.what}; samples: {shown}", error.rows)


def _detached(loss: LossOutput) -> LossOutput:
    return LossOutput(loss=loss.loss.detach(), metrics=loss.metrics)
