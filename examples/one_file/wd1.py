"""wd1 (arXiv:2507.08838) in one file: a toy model, no framework. Run it: ``python wd1.py``.

Per training step: sample G responses to each prompt, score each by its reward minus the group's mean, and make
several updates. Each update hides the whole response and part of the prompt, and scores all response tokens from one
forward of the live model; softmax weights over the group pull good responses up and push poor ones down.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LETTERS, EOS, MASK = 4, 4, 5
PROMPT, RESPONSE, GROUP, PROMPTS = 2, 6, 6, 4
WIDTH = PROMPT + RESPONSE


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


def completion_mask(tokens: Tensor) -> Tensor:
    """[B,R] bool: up to and including the first end token."""
    ends = tokens[:, PROMPT:] == EOS
    return ends.cumsum(dim=1) - ends.long() == 0


def reward(tokens: Tensor) -> Tensor:
    """[B]: share of response tokens that are letter 0."""
    return (tokens[:, PROMPT:] == 0).double().mean(dim=1)


def advantages(rewards: Tensor) -> Tensor:
    """[B]: reward minus the mean of its group; rows of a prompt are adjacent."""
    return (rewards.view(-1, GROUP) - rewards.view(-1, GROUP).mean(dim=1, keepdim=True)).flatten()


def log_likelihood(model: nn.Module, tokens: Tensor, uniform: Tensor, prompt_mask: float = 0.15) -> Tensor:
    """[B,R]: one forward; the whole response is hidden, and each prompt token with u < ``prompt_mask``."""
    hidden = uniform < prompt_mask
    hidden[:, PROMPT:] = True
    logp = model(tokens.masked_fill(hidden, MASK)).log_softmax(dim=-1)
    return logp.gather(2, tokens[..., None])[:, PROMPT:, 0]


def loss(live: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Weighted log-likelihoods: attract by softmax(A), repel by softmax(-A), mean over groups."""
    likelihood = (live * mask).sum(dim=1).view(-1, GROUP)
    a = advantage.view(-1, GROUP)
    return -((a.softmax(dim=1) - (-a).softmax(dim=1)) * likelihood).sum(dim=1).mean()


def train(steps: int = 20, updates: int = 4, lr: float = 0.02, seed: int = 0) -> list[float]:
    """Mean reward of each step's rollout."""
    generator = torch.Generator().manual_seed(seed)
    model = Toy(generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)
    history = []
    for _ in range(steps):
        prompts = torch.randint(0, LETTERS, (PROMPTS, PROMPT), generator=generator).repeat_interleave(GROUP, dim=0)
        tokens = sample(model, prompts, 0.9, generator)
        rewards, mask = reward(tokens), completion_mask(tokens)
        for _ in range(updates):
            uniform = torch.rand(tokens.shape, generator=generator, dtype=torch.float64)
            optimizer.zero_grad()
            loss(log_likelihood(model, tokens, uniform), advantages(rewards), mask).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
        history.append(float(rewards.mean()))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train()):
        print(f"step {number:2d}  mean reward {value:.3f}")
