"""Rows, plan contexts and loss inputs made by hand, for tests of estimators and algorithms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dare_core.interfaces import PlanContext
from dare_core.types import (
    Address,
    Advantages,
    AttentionLayout,
    Estimate,
    LossInputs,
    ModelFacts,
    Progress,
    Rollout,
    Rows,
    Scores,
    Trace,
    Verdict,
    VerdictStatus,
    Views,
)


def rows_of(
    tokens: Tensor, prompt: Tensor, response: Tensor, *, completion: Tensor | None = None, group: Tensor | None = None
) -> Rows:
    """Rows with sample ids 0, 1, ...; one group unless given."""
    count = len(tokens)
    return Rows(
        tokens=tokens,
        prompt=prompt,
        response=response,
        completion=response if completion is None else completion,
        sample_id=torch.arange(count),
        group=torch.zeros(count, dtype=torch.int64) if group is None else group,
        example_id=tuple(f"row-{i}" for i in range(count)),
    )


def split_rows(tokens: Tensor, prompt_width: int, valid: Tensor | None = None) -> Rows:
    """Rows whose first columns are the prompt and the others the response, within ``valid``."""
    is_prompt = (torch.arange(tokens.shape[1]) < prompt_width).expand(tokens.shape)
    valid = torch.ones_like(is_prompt) if valid is None else valid
    return rows_of(tokens, is_prompt & valid, ~is_prompt & valid)


def rollout_of(rows: Rows, commit_step: Tensor, *, replayable: bool = True) -> Rollout:
    """The rows as a rollout with this trace."""
    count = len(rows)
    return Rollout(
        **{name: getattr(rows, name) for name in Rows.__dataclass_fields__},
        finish=("length",) * count,
        text=("",) * count,
        policy_version=0,
        forwards=commit_step.amax(dim=1) + 1,
        trace=Trace(commit_step=commit_step, replayable=replayable),
    )


def plan_context(
    mask_id: int, *, seed: int = 0, step: int = 0, purpose: str = "corruption", layout: AttentionLayout | None = None
) -> PlanContext:
    """A context for a model with this mask id."""
    facts = ModelFacts(
        kind="made", diffusion="masked", vocab_size=mask_id + 1, mask_id=mask_id, eos_ids=(), pad_id=0, max_positions=99
    )
    address = Address(seed, purpose, step)
    return PlanContext(facts=facts, address=address, layout=layout or AttentionLayout())


def scores_from_logits(views: Views, logits: Tensor) -> Scores:
    """Log-probabilities of the targets at scored positions under aligned logits [N,L,V]."""
    targets = torch.where(views.scored, views.targets, 0)
    logp = logits.log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0]
    return Scores(logp=torch.where(views.scored, logp, 0.0))


def loss_inputs(
    live: Tensor,
    old: Tensor | None = None,
    *,
    reference: Tensor | None = None,
    advantages: Tensor | None = None,
    usable: Tensor | None = None,
    completion: Tensor | None = None,
    response: Tensor | None = None,
    row: Tensor | None = None,
    step: Tensor | None = None,
    mask: Tensor | None = None,
) -> LossInputs:
    """Loss inputs for token estimates [B,L], or with ``row`` and ``step`` [N] for view-token estimates [N,L].

    ``old`` None is the first inner update. ``mask`` [N,L] says which entries carry an estimate.
    """
    count = len(live) if row is None else int(row.max()) + 1
    width = live.shape[1]
    full = torch.ones(count, width, dtype=torch.bool)
    response = full if response is None else response
    rows = rows_of(torch.zeros(count, width, dtype=torch.int64), ~full, response, completion=completion)
    per = "token" if row is None else "view-token"
    row = torch.arange(count) if row is None else row
    mask = response[row] if mask is None else mask

    def estimate(value: Tensor) -> Estimate:
        return Estimate(value=value, per=per, bound="surrogate", mask=mask)

    views = Views(
        inputs=rows.tokens[row],
        targets=rows.tokens[row],
        valid=rows.valid[row],
        scored=mask & rows.valid[row],
        weight=mask.to(torch.float64),
        row=row,
        draw=torch.zeros_like(row) if step is None else step,
        prompt_length=rows.prompt_length[row],
        layout=AttentionLayout(),
    )
    given = None
    if advantages is not None:
        given = Advantages(value=advantages, usable=torch.ones(count, dtype=torch.bool) if usable is None else usable)
    return LossInputs(
        rows=rows,
        views=views,
        scores=Scores(logp=live),
        live=estimate(live),
        old=estimate(live.detach() if old is None else old),
        reference=None if reference is None else estimate(reference),
        advantages=given,
        progress=Progress(step=0, total=1),
    )


def verdicts_of(scores: Sequence[float | None]) -> list[Verdict]:
    """Verdicts with these scores; None = the verifier failed."""
    return [
        Verdict(None, VerdictStatus.ERROR) if score is None else Verdict(score, VerdictStatus.WRONG) for score in scores
    ]
