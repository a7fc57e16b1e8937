"""Rollouts that branch: one canvas per prompt, continued several times at the start of each stage.

A stage holds whole blocks, so a canvas at a branch is a longer prompt. The first continuation of a canvas is the one
decoded first: its row goes on to the end, and only its siblings are decoded anew from the branch. The sampled tree is
distributed as if every stage were decoded by itself, and costs no more forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dare_core.diffusion.denoise import DenoiseResult
from dare_core.diffusion.rollouts import SampleRows
from dare_core.errors import Problem, UserError
from dare_core.interfaces import RolloutRequest
from dare_core.types import Address, DecodingSettings, ModelFacts, Snapshots, TreeShape

#: decodes prompts [B] of token ids by a protocol, address and sample ids [B]
Decode = Callable[[Sequence[Sequence[int]], DecodingSettings, Address, Tensor], DenoiseResult]


def decode_tree(
    rows: SampleRows, request: RolloutRequest, shape: TreeShape, facts: ModelFacts, decode: Decode
) -> DenoiseResult:
    """Finished responses of every prompt's tree, with its segments as snapshots.

    Args:
        rows: B rows, the ``shape.leaves`` of a prompt adjacent.
        request: gives the protocol of a whole response, and the address of the draws; each stage has its own.
        shape: how to branch.
        facts: of the model.
        decode: decodes rows.

    Returns:
        Rows in the given order. ``forwards`` counts those spent on the row: shared ones count where they were run. A
        snapshot is a segment of the tree: ``inputs`` the canvas at a branch, ``predicted`` the canvas at the next one,
        ``row`` the first response below it, ``step`` the forwards before it, ``parent`` the segment it continues.

    Raises:
        UserError: the protocol or the model cannot branch so.
        ValueError: the samples per prompt are not the tree's leaves.
    """
    settings = request.settings
    cuts, mask_id = _checked(shape, settings, facts)
    if request.samples != shape.leaves:
        raise ValueError(f"{request.samples} samples per prompt do not make trees of {shape.leaves} responses")
    place = torch.arange(len(rows.tokens)) % shape.leaves
    first = (place % shape.leaves_below(0) == 0).nonzero()[:, 0]
    start = decode([rows.tokens[row] for row in first.tolist()], settings, request.address, rows.sample_id[first])
    made = _spread(start, first, rows.tokens, settings.new_tokens, facts.pad_id)
    for level in range(1, shape.levels):
        below, above = shape.leaves_below(level), shape.leaves_below(level - 1)
        later = ((place % below == 0) & (place % above != 0)).nonzero()[:, 0]
        if not len(later):
            continue
        parents = later - place[later] % above
        lengths = [len(rows.tokens[row]) + cuts[level] for row in parents.tolist()]
        begun = [made.tokens[row, :end].tolist() for row, end in zip(parents.tolist(), lengths, strict=True)]
        rest = replace(settings, new_tokens=settings.new_tokens - cuts[level])
        part = decode(begun, rest, request.address.within(f"tree-{level}"), rows.sample_id[later])
        made = _continued(made, part, later, parents, torch.tensor(lengths))
    return replace(made, snapshots=_segments(made, place, cuts, shape, mask_id))


def _checked(shape: TreeShape, settings: DecodingSettings, facts: ModelFacts) -> tuple[list[int], int]:
    """Where the stages begin and end, and the mask token."""
    if facts.layout.kind != "full" or facts.mask_id is None:
        raise UserError(Problem(f"only masked models branch at block boundaries; this is {facts.kind}", "rollout"))
    try:
        return shape.cuts(settings), facts.mask_id
    except ValueError as error:
        raise UserError(Problem(str(error), "rollout")) from error


def _spread(
    start: DenoiseResult, rows: Tensor, prompts: Sequence[Sequence[int]], new_tokens: int, pad_id: int
) -> DenoiseResult:
    """All rows, of which ``rows`` are decoded."""
    count, width = len(prompts), start.tokens.shape[1]
    length = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    column = torch.arange(width)
    response = (column >= length) & (column < length + new_tokens)

    def put(name: str, blank: Tensor) -> Tensor:
        given: Tensor = getattr(start, name)
        return blank.to(given.dtype).index_copy(0, rows, given.cpu())

    empty = torch.zeros(count, width)
    return replace(
        start,
        tokens=put("tokens", empty + pad_id),
        prompt=column < length,
        response=response,
        asked=response,
        commit_step=put("commit_step", empty - 1),
        logp=put("logp", empty),
        forwards=put("forwards", empty[:, 0]),
        stopped=put("stopped", empty[:, 0]),
    )


def _continued(made: DenoiseResult, part: DenoiseResult, rows: Tensor, parents: Tensor, begun: Tensor) -> DenoiseResult:
    """``made`` with ``rows`` continued by ``part`` from the first ``begun`` [R] columns of the rows ``parents``."""
    width = made.tokens.shape[1]
    kept = torch.arange(width) < begun[:, None]
    before = made.commit_step[parents].masked_fill(~kept, -1).amax(dim=1, keepdim=True) + 1

    def joined(name: str) -> Tensor:
        whole: Tensor = getattr(made, name)
        new = getattr(part, name).cpu()
        new = torch.nn.functional.pad(new, (0, width - new.shape[1]), value=-1 if name == "commit_step" else 0)
        if name == "commit_step":
            new = torch.where(new >= 0, new + before, new)
        return whole.index_copy(0, rows, torch.where(kept, whole[parents], new))

    return replace(
        made,
        tokens=torch.where(made.prompt | made.response, joined("tokens"), made.tokens),
        commit_step=joined("commit_step"),
        logp=joined("logp"),
        forwards=made.forwards.index_copy(0, rows, part.forwards.cpu()),
        stopped=made.stopped.index_copy(0, rows, part.stopped.cpu()),
    )


def _segments(made: DenoiseResult, place: Tensor, cuts: list[int], shape: TreeShape, mask_id: int) -> Snapshots:
    """Every stage of every node, ordered by row and step."""
    column, length = torch.arange(made.tokens.shape[1]), made.prompt.sum(dim=1, keepdim=True)
    parts, keys, parents = [], [], []
    for level in range(shape.levels):
        row = (place % shape.leaves_below(level) == 0).nonzero()[:, 0]
        start, end = length[row] + cuts[level], length[row] + cuts[level + 1]
        tokens, response = made.tokens[row], made.response[row]
        new = response & (column >= start) & (column < end)
        earlier = made.commit_step[row].masked_fill(column >= start, -1)
        parts.append(
            (
                tokens.masked_fill(response & (column >= start), mask_id),
                tokens.masked_fill(response & (column >= end), mask_id),
                torch.where(new, made.logp[row].exp(), 0.0),
                row,
                earlier.amax(dim=1) + 1,
            )
        )
        keys.append(level * len(place) + row)
        above = shape.leaves_below(level - 1) if level else 0
        parents.append((level - 1) * len(place) + row - place[row] % above if level else torch.full_like(row, -1))
    inputs, predicted, confidence, row, step = (torch.cat(part) for part in zip(*parts, strict=True))
    order = (row * (int(step.max()) + 1) + step).argsort()
    index = torch.empty(shape.levels * len(place), dtype=torch.int64).scatter(
        0, torch.cat(keys)[order], torch.arange(len(order))
    )
    parent = torch.cat(parents)[order]
    return Snapshots(
        inputs=inputs[order],
        predicted=predicted[order],
        confidence=confidence[order],
        row=row[order],
        step=step[order],
        parent=torch.where(parent >= 0, index[parent.clamp(min=0)], -1),
    )
