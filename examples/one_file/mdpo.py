"""MDPO (arXiv:2508.13148) in one file: a toy model, no framework. Run it: ``python mdpo.py``.

Per training step: sample G responses to each prompt and keep, for every forward, what it saw, what it guessed for all
hidden positions, and how sure it was. Each guess is judged. The forwards with the largest advantages are trained:
their guesses are scored in the states they were made in.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

LETTERS, EOS, MASK = 4, 4, 5
PROMPT, RESPONSE, GROUP, PROMPTS = 2, 6, 6, 4
WIDTH, STEPS = PROMPT + RESPONSE, RESPONSE // 2


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
def sample(
    model: nn.Module, prompts: Tensor, temperature: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """States, guesses and confidences, each [K,B,L]: two tokens per forward, the most probable samples first."""
    tokens = torch.cat([prompts, torch.full((len(prompts), RESPONSE), MASK)], dim=1)
    states, guesses, confidences = [], [], []
    for _ in range(STEPS):
        logits = model(tokens)
        hidden = tokens == MASK
        sampled = torch.multinomial((logits / temperature).softmax(dim=-1).flatten(0, 1), 1, generator=generator)
        guess = sampled.view(tokens.shape).where(hidden, tokens)
        confidence = logits.softmax(dim=-1).gather(2, guess[..., None])[..., 0] * hidden
        states.append(tokens)
        guesses.append(guess)
        confidences.append(confidence)
        chosen = confidence.masked_fill(~hidden, -1).topk(2, dim=1).indices
        tokens = tokens.scatter(1, chosen, guess.gather(1, chosen))
    return torch.stack(states), torch.stack(guesses), torch.stack(confidences)


def reward(tokens: Tensor) -> Tensor:
    """[B]: share of response tokens that are letter 0."""
    return (tokens[:, PROMPT:] == 0).double().mean(dim=1)


def advantages(rewards: Tensor) -> Tensor:
    """[K,B] from the rewards [K,B] of all guesses: gain of the step plus what came of it, scaled within the group."""
    before = torch.cat([torch.zeros_like(rewards[:1]), rewards[:-1]])
    later = [rewards[step + 1 :].mean(dim=0) if step + 1 < STEPS else rewards[step] for step in range(STEPS)]
    value = (rewards - before + 1 + torch.stack(later)).view(STEPS, -1, GROUP)
    return ((value - value.mean(dim=2, keepdim=True)) / (value.std(dim=2, keepdim=True) + 1e-4)).flatten(1)


def important(advantage: Tensor, most: int) -> Tensor:
    """[K,B] bool: for each group its ``most`` steps with the largest sum of |A|."""
    total = advantage.view(STEPS, -1, GROUP).abs().sum(dim=2)
    chosen = torch.zeros_like(total, dtype=torch.bool).scatter(0, total.topk(most, dim=0).indices, True)
    return chosen.repeat_interleave(GROUP, dim=1)


def log_likelihoods(model: nn.Module, states: Tensor, guesses: Tensor, temperature: float) -> Tensor:
    """[K,B,L]: log-probabilities of the guesses in the states they were made in."""
    logp = (model(states.flatten(0, 1)) / temperature).log_softmax(dim=-1).view(*states.shape, -1)
    return logp.gather(3, guesses[..., None])[..., 0]


def loss(
    live: Tensor,
    old: Tensor,
    reference: Tensor,
    advantage: Tensor,
    states: Tensor,
    confidence: Tensor,
    most: int = 2,
    clip: float = 0.2,
    beta: float = 0.02,
) -> Tensor:
    """Per group and chosen step the confidence-weighted token mean over hidden positions; then the mean over steps."""
    ratio, a = (live - old).exp(), advantage[..., None]
    policy = -torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
    hidden = states == MASK
    scale = RESPONSE / (hidden.sum(dim=2, keepdim=True) + 1e-4)
    weighted = confidence * (scale * policy + beta * (live - reference) ** 2 / 2) * hidden
    sums = weighted.sum(dim=2).view(STEPS, -1, GROUP).sum(dim=2)
    counts = hidden.sum(dim=2).view(STEPS, -1, GROUP).sum(dim=2)
    return (sums / (counts + 1e-4))[important(advantage, most)[:, ::GROUP]].mean()


def train(steps: int = 30, lr: float = 0.03, seed: int = 0) -> list[float]:
    """Mean reward of each step's final guesses."""
    generator = torch.Generator().manual_seed(seed)
    model = Toy(generator)
    base = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    history = []
    for _ in range(steps):
        prompts = torch.randint(0, LETTERS, (PROMPTS, PROMPT), generator=generator).repeat_interleave(GROUP, dim=0)
        states, guesses, confidence = sample(model, prompts, 1.0, generator)
        rewards = reward(guesses.flatten(0, 1)).view(STEPS, -1)
        live = log_likelihoods(model, states, guesses, 1.0)
        with torch.no_grad():
            reference = log_likelihoods(base, states, guesses, 1.0)
        optimizer.zero_grad()
        loss(live, live.detach(), reference, advantages(rewards), states, confidence).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append(float(rewards[-1].mean()))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train()):
        print(f"step {number:2d}  mean reward {value:.3f}")
