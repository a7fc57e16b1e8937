"""d-TreeRPO (arXiv:2512.09675) in one file: a toy model, no framework. Run it: ``python d-treerpo.py``.

Per training step: decode the first half of the response T0 times, and continue each canvas T times. Finished responses
are judged, a canvas is worth the mean of what came of it, and siblings are compared. What is trained are the segments:
each is scored by one forward on the canvas it started from; good siblings also teach that canvas what to predict.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

LETTERS, EOS, MASK = 4, 4, 5
PROMPT, RESPONSE, PROMPTS = 2, 6, 4
WIDTH, HALF = PROMPT + RESPONSE, RESPONSE // 2
ROOT, BRANCH = 2, 3
GROUP = ROOT * BRANCH


class Toy(nn.Module):
    """A bidirectional model of a few hundred parameters."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()

        def table(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.5)

        self.token, self.place = table(MASK + 1, 16), table(WIDTH, 16)
        self.mix, self.head = table(16, 16), table(16, MASK + 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B,L] tokens -> [B,L,V] logits of the token at each position; the mask is never predicted."""
        hidden = torch.tanh(self.token[tokens] + self.place)
        hidden = torch.tanh(hidden + hidden.mean(dim=1, keepdim=True) @ self.mix)
        never = torch.zeros(MASK + 1, dtype=torch.float64).index_fill(0, torch.tensor([MASK]), -1e9)
        return hidden @ self.head + never


@torch.no_grad()
def continued(model: nn.Module, tokens: Tensor, end: int, temperature: float, generator: torch.Generator) -> Tensor:
    """[B,L]: all masked positions before ``end`` decoded, one per forward, the most probable sample first."""
    tokens = tokens.clone()
    for _ in range(HALF):
        probabilities = (model(tokens) / temperature).softmax(dim=-1)
        guess = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator).view(tokens.shape)
        open_to = (tokens == MASK) & (torch.arange(WIDTH) < end)
        confidence = probabilities.gather(2, guess[..., None])[..., 0].masked_fill(~open_to, -1)
        chosen = confidence.argmax(dim=1, keepdim=True)
        tokens = tokens.scatter(1, chosen, guess.gather(1, chosen))
    return tokens


def sample(model: nn.Module, prompts: Tensor, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Canvases that segments start from and end with, both [S,L]: first halves of all prompts, then second halves."""
    masked = torch.cat([prompts, torch.full((len(prompts), RESPONSE), MASK)], dim=1).repeat_interleave(ROOT, dim=0)
    half = continued(model, masked, PROMPT + HALF, temperature, generator)
    begun = half.repeat_interleave(BRANCH, dim=0)
    leaves = continued(model, begun, WIDTH, temperature, generator)
    return torch.cat([masked, begun]), torch.cat([half, leaves])


def reward(tokens: Tensor) -> Tensor:
    """[B]: share of response tokens that are letter 0."""
    return (tokens[:, PROMPT:] == 0).double().mean(dim=1)


def siblings(prompts: int) -> Tensor:
    """[S] int64: the same number for segments that start from the same canvas."""
    first = torch.arange(prompts).repeat_interleave(ROOT)
    return torch.cat([first, prompts + torch.arange(prompts * ROOT).repeat_interleave(BRANCH)])


def advantages(rewards: Tensor) -> Tensor:
    """[S] from the rewards [leaves]: a segment's value minus the mean of its siblings' without it."""

    def compared(values: Tensor) -> Tensor:
        count = values.shape[1]
        return ((values - values.mean(dim=1, keepdim=True)) * count / (count - 1)).flatten()

    worth = rewards.view(-1, BRANCH).mean(dim=1)
    return torch.cat([compared(worth.view(-1, ROOT)), compared(rewards.view(-1, BRANCH))])


def active(parents: Tensor, children: Tensor) -> Tensor:
    """[S,L] bool: what a segment adds, up to and including the first end token."""
    ends = (children == EOS) & (torch.arange(WIDTH) >= PROMPT)
    return (parents == MASK) & (children != MASK) & (ends.cumsum(dim=1) - ends.long() == 0)


def log_likelihoods(model: nn.Module, parents: Tensor, children: Tensor) -> Tensor:
    """[S,L]: one forward per segment, on the canvas it started from."""
    return model(parents).log_softmax(dim=-1).gather(2, children[..., None])[..., 0]


def self_distillation(
    live: Tensor, children: Tensor, mask: Tensor, advantage: Tensor, group: Tensor, tau: float
) -> Tensor:
    """Mean over canvases and positions of sum_v q (log q - log p), q weighing what good siblings put there."""
    terms = []
    for canvas in group.unique():
        good = ((group == canvas) & (advantage > 0)).nonzero()[:, 0]
        for place in range(PROMPT, WIDTH):
            here = good[mask[good, place]]
            if not len(here):
                continue
            weight = (advantage[here] / tau).softmax(dim=0)
            same = children[here, place][:, None] == children[here, place]
            q = (same * weight).sum(dim=1)
            terms.append((weight * ((q + 1e-8).log() - live[here, place])).sum())
    return torch.stack(terms).mean() if terms else live.sum() * 0


def loss(
    live: Tensor,
    old: Tensor,
    reference: Tensor,
    parents: Tensor,
    children: Tensor,
    advantage: Tensor,
    share: float,
    clip: float = 0.4,
    beta: float = 0.01,
) -> Tensor:
    """Token mean per segment, mean over segments, and self-distillation that grows with the share of the run done."""
    ratio, a = (live - old).exp(), advantage[:, None]
    policy = -torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
    kl = (reference - live).exp() + (live - reference) - 1
    mask = active(parents, children)
    count = mask.sum(dim=1)
    per_segment = ((policy + beta * kl) * mask).sum(dim=1)[count > 0] / count[count > 0]
    weight = 3e-3 * math.expm1(2 * share) / math.expm1(2)
    group = siblings(len(children) // (ROOT + GROUP))
    tau = max(2 * (1 - share) ** 0.7, 1e-6)
    return per_segment.mean() + weight * self_distillation(live, children, mask, advantage, group, tau)


def train(steps: int = 30, updates: int = 4, lr: float = 0.02, seed: int = 0) -> list[float]:
    """Mean reward of each step's responses."""
    generator = torch.Generator().manual_seed(seed)
    model = Toy(generator)
    base = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)
    history = []
    for step in range(steps):
        prompts = torch.randint(0, LETTERS, (PROMPTS, PROMPT), generator=generator)
        parents, children = sample(model, prompts, 0.9, generator)
        rewards = reward(children[-len(prompts) * GROUP :])
        with torch.no_grad():
            old, reference = (log_likelihoods(policy, parents, children) for policy in (model, base))
        for _ in range(updates):
            live = log_likelihoods(model, parents, children)
            optimizer.zero_grad()
            loss(live, old, reference, parents, children, advantages(rewards), step / steps).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
        history.append(float(rewards.mean()))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train()):
        print(f"step {number:2d}  mean reward {value:.3f}")
