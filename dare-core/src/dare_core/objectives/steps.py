"""Values of denoising steps: how good it was to be where the decoder stood, from rewards of its guesses."""

from __future__ import annotations

import torch
from torch import Tensor


def step_values(rewards: Tensor, present: Tensor) -> Tensor:
    """[B,T]: what a step gained, and what came of it. MDPO (He et al. 2025, arXiv:2508.13148), as in the authors' code.

    With r_t the reward of the guess at step t and r_-1 = 0::

        v_t = (r_t - r_(t-1)) + 1 + mean(r_(t+1) ... r_(T-1)),   the last term being r_(T-1) at a row's last step

    Args:
        rewards: [B,T] rewards of the guesses; rows may be of different lengths.
        present: [B,T] bool steps that a row has, the first ones.

    Returns:
        [B,T]; 0 at steps that a row does not have.
    """
    kept = torch.where(present, rewards, 0.0)
    before = torch.nn.functional.pad(kept, (1, 0))[:, :-1]
    count = present.flip(1).cumsum(1).flip(1) - present.long()
    later = kept.flip(1).cumsum(1).flip(1) - kept
    outlook = torch.where(count > 0, later / count.clamp(min=1), kept)
    return torch.where(present, kept - before + 1 + outlook, 0.0)


def most_important(size: Tensor, key: Tensor, most: int) -> Tensor:
    """[K] the at most ``most`` keys with the largest summed ``size``, largest first; equal ones in their own order.

    Args:
        size: [S] not negative.
        key: [S] int64 what each belongs to.
        most: how many.
    """
    keys, index = torch.unique(key, return_inverse=True)
    total = torch.zeros(len(keys), dtype=size.dtype, device=size.device).index_add(0, index, size)
    chosen: Tensor = keys[total.argsort(descending=True, stable=True)[:most]]
    return chosen
