"""The exact probability that the denoising decoder takes a given course, by enumerating what it might propose.

A forward proposes a token at every undecided position of the block and commits some of them. Under rules that
look at the proposed tokens (low-confidence), the choice depends on proposals that are not committed, so a course's
probability is not the product of its tokens' probabilities; under rules that look at distributions or positions
only, it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dare_core.diffusion.confidence import entropy_confidence, margin_confidence, token_confidence
from dare_core.diffusion.denoise import decoding_layout
from dare_core.diffusion.layouts import block_index
from dare_core.diffusion.rules import Rule, find_rule
from dare_core.diffusion.sampling import filter_logits
from dare_core.diffusion.schedules import commit_quota
from dare_core.diffusion.selection import select
from dare_core.diffusion.trajectory import state_before
from dare_core.interfaces import ModelAdapter
from dare_core.testing.enumeration import mask_id
from dare_core.types import AttentionLayout, DecodingSettings, Rows


@torch.no_grad()
def trajectory_logp(
    adapter: ModelAdapter, rows: Rows, commit_step: Tensor, settings: DecodingSettings, row: int = 0
) -> float:
    """Log-probability that decoding one row's prompt gives its tokens with these commit steps; -inf if it cannot.

    Args:
        adapter: a toy: V to the power of the block's length combinations are visited.
        rows: the batch; the row's response is the whole decoded response.
        commit_step: [B,L] int64.
        settings: temperature > 0; end rules and guidance are not followed.
        row: which row.

    Raises:
        ValueError: a rule that edits, decides position by position, or draws its order.
    """
    rule = find_rule(settings.selection)
    if rule.edits or rule.selector == "independent" or rule.order_temperature:
        raise ValueError(f"courses under {rule.kind!r} with these options are not enumerated")
    length = rows.prompt_length[row : row + 1]
    counted_from = AttentionLayout("block", settings.block_length, decoding_layout(adapter.facts, settings).origin)
    if adapter.facts.layout.kind == "full":
        counted_from = AttentionLayout("block", settings.block_length, "response")
    blocks = block_index(rows.valid[row : row + 1], length, counted_from)[0]
    response, forward, total = rows.response[row], 0, 0.0
    if bool((commit_step[row][response] < 0).any()):
        return -math.inf
    for block in sorted(set(blocks[response].tolist())):
        members = response & (blocks == block)
        if bool((commit_step[row][members] < forward).any()):
            return -math.inf
        size = members.sum()
        step = 0
        while bool((members & (commit_step[row] >= forward)).any()):
            still_open = (members & (commit_step[row] >= forward)).nonzero()[:, 0]
            counts = (size[None], torch.tensor([len(still_open)]), torch.tensor([step]))
            quota = commit_quota(settings, rule, *counts)
            probability = _transition(adapter, rows, commit_step, settings, row, forward, still_open, quota)
            total += math.log(probability) if probability > 0 else -math.inf
            forward, step = forward + 1, step + 1
    return total


def _transition(
    adapter: ModelAdapter,
    rows: Rows,
    commit_step: Tensor,
    settings: DecodingSettings,
    row: int,
    forward: int,
    still_open: Tensor,
    quota: Tensor,
) -> float:
    """Probability that this forward commits exactly the tokens that the row says it does."""
    one = slice(row, row + 1)
    state = state_before(rows.tokens[one], commit_step[one], rows.response[one], forward, mask_id(adapter))
    where = torch.zeros_like(rows.response[one])
    where[0, still_open] = True
    layout = decoding_layout(adapter.facts, settings)
    logits = adapter.logits(state, rows.valid[one], where, layout=layout, prompt_length=rows.prompt_length[one])
    rule = find_rule(settings.selection)
    wanted, committed = rows.tokens[row, still_open], commit_step[row, still_open] == forward
    tempered = filter_logits(
        logits / settings.temperature, top_p=settings.top_p, top_k=settings.top_k, min_p=settings.min_p
    )
    probability = tempered.softmax(dim=1)
    if rule.confidence == "random":
        ways = math.comb(len(still_open), int(committed.sum()))
        right_count = int(committed.sum()) == int(quota)
        return right_count * float(probability.gather(1, wanted[:, None])[committed].prod()) / ways
    confidence = _confidence_of_tokens(rule, logits if rule.distribution == "model" else tempered, still_open)
    proposals = torch.cartesian_prod(*[torch.arange(logits.shape[1])] * len(still_open)).reshape(-1, len(still_open))
    at = torch.arange(len(still_open))
    ranked = confidence[at, proposals]
    chosen = select(rule)(ranked, torch.ones_like(ranked, dtype=torch.bool), quota.expand(len(ranked)))
    hit = (chosen == committed).all(dim=1) & ((proposals == wanted) | ~committed).all(dim=1)
    return float((probability[at, proposals].prod(dim=1) * hit).sum())


def _confidence_of_tokens(rule: Rule, logits: Tensor, columns: Tensor) -> Tensor:
    """[m,V] confidence of position i if token v is proposed there."""
    count, vocab = logits.shape
    if rule.confidence == "token":
        tokens = [token_confidence(logits, torch.full((count,), token)) for token in range(vocab)]
        return torch.stack(tokens, dim=1)
    if rule.confidence == "position":
        return -columns.to(torch.float64)[:, None].expand(count, vocab)
    flat = margin_confidence(logits) if rule.confidence == "margin" else entropy_confidence(logits)
    return flat[:, None].expand(count, vocab)
