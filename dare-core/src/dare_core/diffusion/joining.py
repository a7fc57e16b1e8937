"""Rollouts side by side, and some rows of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_core.types import Edits, Rollout, Snapshots, Trace

_COLUMNS = ("tokens", "prompt", "response", "completion", "sample_id", "group", "forwards")


def joined(rollouts: Sequence[Rollout], pad_id: int) -> Rollout:
    """The rows of all rollouts, in their order, in one width.

    Raises:
        ValueError: there is none.
    """
    if not rollouts:
        raise ValueError("no rollout to join")
    width = max(rollout.tokens.shape[1] for rollout in rollouts)
    parts = [_widened(rollout, width, pad_id) for rollout in rollouts]
    return replace(
        parts[0],
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in _COLUMNS},
        example_id=tuple(name for part in parts for name in part.example_id),
        finish=tuple(end for part in parts for end in part.finish),
        text=tuple(text for part in parts for text in part.text),
        logp=_together([part.logp for part in parts]),
        trace=_joined_traces(parts),
        agreement=None,
    )


def rows_of(rollout: Rollout, kept: Tensor) -> Rollout:
    """The rows where ``kept`` [B] bool is True, groups being kept whole or not at all."""
    index, trace = kept.nonzero()[:, 0], rollout.trace
    if trace is not None:
        place = torch.cumsum(kept, dim=0) - 1
        trace = replace(
            trace,
            commit_step=trace.commit_step[index],
            snapshots=None if trace.snapshots is None else _kept_snapshots(trace.snapshots, kept, place),
            edits=None if trace.edits is None else _kept_edits(trace.edits, kept, place),
        )
    rows = index.tolist()
    return replace(
        rollout,
        **{name: getattr(rollout, name)[index] for name in _COLUMNS},
        example_id=tuple(rollout.example_id[row] for row in rows),
        finish=tuple(rollout.finish[row] for row in rows),
        text=tuple(rollout.text[row] for row in rows),
        logp=None if rollout.logp is None else rollout.logp[index],
        trace=trace,
    )


def _widened(rollout: Rollout, width: int, pad_id: int) -> Rollout:
    more, trace = width - rollout.tokens.shape[1], rollout.trace
    if trace is not None:
        snapshots = trace.snapshots
        if snapshots is not None:
            snapshots = replace(
                snapshots,
                inputs=pad(snapshots.inputs, (0, more), value=pad_id),
                predicted=pad(snapshots.predicted, (0, more), value=pad_id),
                confidence=pad(snapshots.confidence, (0, more)),
            )
        trace = replace(trace, commit_step=pad(trace.commit_step, (0, more), value=-1), snapshots=snapshots)
    return replace(
        rollout,
        tokens=pad(rollout.tokens, (0, more), value=pad_id),
        prompt=pad(rollout.prompt, (0, more)),
        response=pad(rollout.response, (0, more)),
        completion=pad(rollout.completion, (0, more)),
        logp=None if rollout.logp is None else pad(rollout.logp, (0, more)),
        trace=trace,
    )


def _joined_traces(parts: Sequence[Rollout]) -> Trace | None:
    traces = [part.trace for part in parts if part.trace is not None]
    if len(traces) != len(parts):
        return None
    before = [sum(len(part) for part in parts[:number]) for number in range(len(parts))]
    snapshots = [trace.snapshots for trace in traces if trace.snapshots is not None]
    edits = [trace.edits for trace in traces if trace.edits is not None]
    return replace(
        traces[0],
        commit_step=torch.cat([trace.commit_step for trace in traces]),
        replayable=all(trace.replayable for trace in traces),
        snapshots=_joined_snapshots(snapshots, before) if len(snapshots) == len(traces) else None,
        edits=_joined_edits(edits, before) if len(edits) == len(traces) else None,
    )


def _joined_snapshots(parts: Sequence[Snapshots], before: Sequence[int]) -> Snapshots:
    names = ("inputs", "predicted", "confidence", "step")
    parents: list[Tensor] = []
    start = 0
    for part in parts:
        if part.parent is not None:
            parents.append(torch.where(part.parent >= 0, part.parent + start, -1))
        start += len(part.row)
    return Snapshots(
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in names},
        row=torch.cat([part.row + offset for part, offset in zip(parts, before, strict=True)]),
        parent=torch.cat(parents) if len(parents) == len(parts) else None,
    )


def _joined_edits(parts: Sequence[Edits], before: Sequence[int]) -> Edits:
    columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in ("step", "column", "old", "new")}
    return Edits(row=torch.cat([part.row + offset for part, offset in zip(parts, before, strict=True)]), **columns)


def _kept_snapshots(snapshots: Snapshots, kept: Tensor, place: Tensor) -> Snapshots:
    stays = kept[snapshots.row]
    parent = snapshots.parent
    if parent is not None:
        order = torch.cumsum(stays, dim=0) - 1
        parent = torch.where(parent >= 0, order[parent.clamp(min=0)], -1)[stays]
    columns = {name: getattr(snapshots, name)[stays] for name in ("inputs", "predicted", "confidence", "step")}
    return Snapshots(**columns, row=place[snapshots.row[stays]], parent=parent)


def _kept_edits(edits: Edits, kept: Tensor, place: Tensor) -> Edits:
    stays = kept[edits.row]
    columns = {f.name: getattr(edits, f.name)[stays] for f in fields(edits) if f.name != "row"}
    return Edits(row=place[edits.row[stays]], **columns)


def _together(tensors: Sequence[Tensor | None]) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(present) if len(present) == len(tensors) else None
