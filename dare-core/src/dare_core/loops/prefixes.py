"""Rewards of intermediate guesses: what the model would have answered at each denoising forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from dare_core.diffusion.completion import completion_mask
from dare_core.interfaces import Reward, TextCodec
from dare_core.types import ModelFacts, Prompt, Rollout, Snapshots, Verdict


def with_prefix_scores(
    reward: Reward,
    codec: TextCodec,
    facts: ModelFacts,
    prompts: Sequence[Prompt],
    rollout: Rollout,
    verdicts: Sequence[Verdict],
) -> list[Verdict]:
    """The verdicts with ``prefix_scores``: one score per recorded forward of the row, oldest first.

    A guess is a forward's canvas with every masked position filled by the model's proposal, cut at the first end
    token. Guesses of one prompt that read the same are judged once, and the final text is not judged again. The score
    of a guess on which the reward failed is NaN.

    Args:
        reward: judges guesses as it judges responses.
        codec: decodes them.
        facts: end tokens and mask token.
        prompts: of each row.
        rollout: with snapshots.
        verdicts: of each row's final text.

    Raises:
        ValueError: the rollout holds no snapshots.
    """
    snapshots = rollout.trace.snapshots if rollout.trace is not None else None
    if snapshots is None:
        raise ValueError("prefix scores need a rollout with snapshots")
    texts = guess_texts(codec, facts, rollout, snapshots)
    rows = snapshots.row.tolist()
    known = {(prompt.id, text): verdict for prompt, text, verdict in zip(prompts, rollout.text, verdicts, strict=True)}
    unknown = dict.fromkeys((prompts[row].id, text) for row, text in zip(rows, texts, strict=True))
    wanted = [key for key in unknown if key not in known]
    by_id = {prompt.id: prompt for prompt in prompts}
    known |= dict(zip(wanted, reward.judge([by_id[name] for name, _ in wanted], [t for _, t in wanted]), strict=True))
    scores: list[list[float]] = [[] for _ in verdicts]
    for row, text in zip(rows, texts, strict=True):
        score = known[prompts[row].id, text].score
        scores[row].append(float("nan") if score is None else score)
    return [replace(verdict, prefix_scores=tuple(row)) for verdict, row in zip(verdicts, scores, strict=True)]


def guess_texts(codec: TextCodec, facts: ModelFacts, rollout: Rollout, snapshots: Snapshots) -> list[str]:
    """Per snapshot the text of its guess; positions without a guess (later blocks of block models) are left out."""
    response = rollout.response[snapshots.row]
    kept = completion_mask(snapshots.predicted, response, facts.eos_ids)
    if facts.mask_id is not None:
        kept &= snapshots.predicted != facts.mask_id
    kept &= ~torch.isin(snapshots.predicted, torch.tensor(facts.eos_ids, device=kept.device))
    return [codec.decode(row[keep].tolist()) for row, keep in zip(snapshots.predicted, kept, strict=True)]
