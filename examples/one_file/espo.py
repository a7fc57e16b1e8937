"""ESPO (arXiv:2512.03759) in one file: a toy model, no framework. Run it: ``python espo.py``.

Per training step: sample G responses to each prompt and make several updates with one ratio per response, from ELBO
estimates on masks of its own. Each mask hides from none to all tokens and is paired with its complement.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

LETTERS, EOS, MASK = 4, 4, 5
PROMPT, RESPONSE, GROUP, PROMPTS = 2, 6, 6, 4
WIDTH = PROMPT + RESPONSE
DRAWS = 2


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
    """[B]: reward minus the mean of the other rewards of its group; rows of a prompt are adjacent."""
    groups = rewards.view(-1, GROUP)
    others = (groups.sum(dim=1, keepdim=True) - groups) / (GROUP - 1)
    return (groups - others).flatten()


def draw_counts(rows: int, generator: torch.Generator) -> Tensor:
    """[B,DRAWS] counts of hidden tokens in 0..RESPONSE: one start per draw, then even steps over the rows."""
    start = torch.randint(0, RESPONSE + 1, (DRAWS,), generator=generator)
    return (start + torch.arange(rows)[:, None] * (RESPONSE + 1) // rows) % (RESPONSE + 1)


def elbo(model: nn.Module, tokens: Tensor, count: Tensor, numbers: Tensor) -> Tensor:
    """[B] mean over draws and both masks of a pair; the smallest ``numbers`` [B,DRAWS,L] are hidden first."""
    rank = numbers[:, :, PROMPT:].argsort(dim=2).argsort(dim=2)
    first = torch.zeros(numbers.shape, dtype=torch.bool)
    first[:, :, PROMPT:] = rank < count[:, :, None]
    second = ~first & (torch.arange(WIDTH) >= PROMPT)
    clean = tokens[:, None].expand(numbers.shape)

    def scored(hidden: Tensor, size: Tensor) -> Tensor:
        logp = model(clean.masked_fill(hidden, MASK).flatten(0, 1)).log_softmax(dim=-1).view(*numbers.shape, -1)
        chosen = logp.gather(3, clean[..., None])[..., 0] * hidden
        return (RESPONSE + 1) / size.clamp(min=1) * chosen.sum(dim=2)

    return (scored(first, count) + scored(second, RESPONSE - count)).mean(dim=1) / 2


def loss(
    live: Tensor, old: Tensor, reference: Tensor, advantage: Tensor, clip: float = 0.2, beta: float = 1e-3
) -> Tensor:
    """Clipped sequence ratio per token, and the squared difference to the reference."""
    ratio = ((live - old) / RESPONSE).exp()
    policy = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip))
    return (policy + beta * (live - reference) ** 2 / 2 / RESPONSE).mean()


def train(steps: int = 20, updates: int = 4, lr: float = 0.02, seed: int = 0) -> list[float]:
    """Mean reward of each step's rollout."""
    generator = torch.Generator().manual_seed(seed)
    model = Toy(generator)
    base = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)
    history = []
    for _ in range(steps):
        prompts = torch.randint(0, LETTERS, (PROMPTS, PROMPT), generator=generator).repeat_interleave(GROUP, dim=0)
        tokens = sample(model, prompts, 1.0, generator)
        rewards = reward(tokens)
        draws = [
            (
                draw_counts(len(tokens), generator),
                torch.rand(len(tokens), DRAWS, WIDTH, generator=generator, dtype=torch.float64),
            )
            for _ in range(updates)
        ]
        with torch.no_grad():
            olds = [elbo(model, tokens, *draw) for draw in draws]
            references = [elbo(base, tokens, *draw) for draw in draws]
        for draw, old, reference in zip(draws, olds, references, strict=True):
            optimizer.zero_grad()
            loss(elbo(model, tokens, *draw), old, reference, advantages(rewards)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
        history.append(float(rewards.mean()))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train()):
        print(f"step {number:2d}  mean reward {value:.3f}")
