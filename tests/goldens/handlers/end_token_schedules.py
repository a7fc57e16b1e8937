"""Golden case of CJ-GRPO's decoding: end tokens held back, steps of growing size."""

from __future__ import annotations

import torch

from dare_core.diffusion.confidence import scaled_confidence, token_confidence
from dare_core.diffusion.schedules import doubling_blocks, doubling_quota, end_factor
from dare_core.testing.goldens import GoldenCase
from dare_core.types import DecodingSettings
from tests.goldens.runner import golden


@golden("algos-grpo", "trajectory", "Decoding schedules shipped with CJ-GRPO")
def end_tokens_and_growing_steps(case: GoldenCase) -> None:
    t, s = case.tensors, case.settings
    steps, length = s["steps"], s["gen_length"]
    guess = t["in.guess"][0]
    plain = token_confidence(t["in.logits"][0], guess, "published")
    for name, schedule in (("sampling", "even"), ("ass_sampling", "doubling")):
        settings = DecodingSettings(length, length, steps, schedule=schedule)
        factor = end_factor(s["eos_min_gamma"], settings, torch.arange(steps))[:, None]
        factor = torch.where(guess == s["eos_token_id"], factor, 1.0)
        case.close(f"out.confidence_{name}", scaled_confidence(plain, factor, "published"))
    for blocks in s["block_nums"]:
        cut = doubling_blocks(length, blocks)
        case.close(f"out.block_sizes_{blocks}", torch.tensor([size for size, _ in cut]))
        case.close(f"out.first_step_of_block_{blocks}", torch.tensor([first for _, first in cut]))
        step = torch.arange(steps)
        open_at_last = cut[-1][0] if blocks > 1 else length - (2 ** (steps - 1) - 1)
        counts = doubling_quota(torch.full_like(step, open_at_last), steps, step)
        case.close(f"out.tokens_per_step_blocks{blocks}", counts)
