"""BGPO (arXiv:2510.11683) in one file: a toy model, no framework. Run it: ``python bgpo.py``.

Per training step: sample G responses to each prompt, draw several masks of each, and take one clipped surrogate per
mask whose ratio is linear in the mask's estimate, so that every mask could be learned by itself. Every response
position is a target here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LETTERS, EOS, MASK = 4, 4, 5
PROMPT, RESPONSE, GROUP, PROMPTS = 2, 6, 6, 4
WIDTH = PROMPT + RESPONSE
DRAWS = 4


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
def sample(model: nn.Module, prompts: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """[B,L]: two tokens per forward, the most probable samples first."""
    tokens = torch.cat([prompts, torch.full((len(prompts), RESPONSE), MASK)], dim=1)
    for _ in range(RESPONSE // 2):
        probabilities = (model(tokens) / temperature).softmax(dim=-1)
        guess = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator).view(tokens.shape)
        confidence = probabilities.gather(2, guess[..., None])[..., 0].masked_fill(tokens != MASK, -1)
        chosen = confidence.topk(2, dim=1).indices
        tokens = tokens.scatter(1, chosen, guess.gather(1, chosen))
    return tokens


def reward(tokens: Tensor) -> Tensor:
    """[B]: share of response tokens that are letter 0."""
    return (tokens[:, PROMPT:] == 0).double().mean(dim=1)


def advantages(rewards: Tensor) -> Tensor:
    """[B]: reward minus the group's mean, divided by the group's standard deviation; rows of a prompt are adjacent."""
    groups = rewards.view(-1, GROUP)
    return ((groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + 1e-6)).flatten()


def draw_counts(rows: int, generator: torch.Generator) -> Tensor:
    """[B,DRAWS] counts of hidden tokens: one start per row, then even steps around 1..RESPONSE."""
    start = torch.randint(0, RESPONSE, (rows, 1), generator=generator)
    return (start + torch.arange(DRAWS) * RESPONSE // DRAWS) % RESPONSE + 1


def elbo_draws(model: nn.Module, tokens: Tensor, count: Tensor, numbers: Tensor) -> Tensor:
    """[B,DRAWS]: RESPONSE / x times the log-probabilities of the x tokens of smallest ``numbers`` [B,DRAWS,L]."""
    rank = numbers[:, :, PROMPT:].argsort(dim=2).argsort(dim=2)
    hidden = torch.zeros(numbers.shape, dtype=torch.bool)
    hidden[:, :, PROMPT:] = rank < count[:, :, None]
    clean = tokens[:, None].expand(numbers.shape)
    logp = model(clean.masked_fill(hidden, MASK).flatten(0, 1)).log_softmax(dim=-1).view(*numbers.shape, -1)
    chosen = logp.gather(3, clean[..., None])[..., 0] * hidden
    return RESPONSE / count * chosen.sum(dim=2)


def loss(live: Tensor, old: Tensor, advantage: Tensor, clip: float = 0.2, cap: float = 3.0) -> Tensor:
    """Mean over rows and draws of clipped linear ratios of estimates [B,DRAWS]."""
    d, a = (live - old) / RESPONSE, advantage[:, None]
    ratio = torch.where(a > 0, 1 + d, d.exp())
    surrogate = torch.maximum(-a * ratio, -a * ratio.clamp(1 - clip, 1 + clip))
    return torch.where(a < 0, torch.minimum(surrogate, -a * cap), surrogate).mean()


def train(steps: int = 30, lr: float = 0.02, seed: int = 0) -> list[float]:
    """Mean reward of each step's rollout."""
    generator = torch.Generator().manual_seed(seed)
    model = Toy(generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    history = []
    for _ in range(steps):
        prompts = torch.randint(0, LETTERS, (PROMPTS, PROMPT), generator=generator).repeat_interleave(GROUP, dim=0)
        tokens = sample(model, prompts, 1.0, generator)
        rewards, count = reward(tokens), draw_counts(len(tokens), generator)
        numbers = torch.rand(len(tokens), DRAWS, WIDTH, generator=generator, dtype=torch.float64)
        live = elbo_draws(model, tokens, count, numbers)
        optimizer.zero_grad()
        loss(live, live.detach(), advantages(rewards)).backward()
        optimizer.step()
        history.append(float(rewards.mean()))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train()):
        print(f"step {number:2d}  mean reward {value:.3f}")
