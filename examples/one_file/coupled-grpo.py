"""Coupled-GRPO (arXiv:2506.20639) in one file: a toy model, no framework. Run it: ``python coupled-grpo.py``.

Per training step: sample G responses to each prompt, take rewards minus the mean of the other rewards as advantages,
and make several updates. Each update draws a share q and splits the response into two complementary masks; the
estimate of a token averages the view that hides it with the view that hides everything.
"""

from __future__ import annotations

import copy

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
    """[B]: reward minus the mean of the other rewards of its group; rows of a prompt are adjacent."""
    groups = rewards.view(-1, GROUP)
    others = (groups.sum(dim=1, keepdim=True) - groups) / (GROUP - 1)
    return (groups - others).flatten()


def log_likelihood(model: nn.Module, tokens: Tensor, uniform: Tensor, share: float) -> Tensor:
    """[B,R]: (log p(all hidden) + weighted log p(the view that hides the token)) / 2; not a log-probability."""
    response = torch.arange(WIDTH) >= PROMPT
    first = (uniform < share) & response

    def scored(hidden: Tensor) -> Tensor:
        logp = model(tokens.masked_fill(hidden, MASK)).log_softmax(dim=-1)
        return logp.gather(2, tokens[..., None])[..., 0] * hidden

    alone = scored(response.expand(tokens.shape))
    pair = scored(first) / share + scored(response & ~first) / (1 - share)
    return (alone + pair)[:, PROMPT:] / 2


def loss(
    live: Tensor, old: Tensor, reference: Tensor, advantage: Tensor, mask: Tensor, clip: float = 0.5, beta: float = 0.01
) -> Tensor:
    """Clipped ratio plus k3, token mean over the batch."""
    ratio, a = (live - old).exp(), advantage[:, None]
    policy = -torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
    kl = (reference - live).exp() + (live - reference) - 1
    return ((policy + beta * kl) * mask).sum() / mask.sum().clamp(min=1)


def train(steps: int = 20, updates: int = 2, lr: float = 0.02, seed: int = 0) -> list[float]:
    """Mean reward of each step's rollout."""
    generator = torch.Generator().manual_seed(seed)
    model = Toy(generator)
    base = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)
    history = []
    for _ in range(steps):
        shares = (0.2 + 0.6 * torch.rand(updates, generator=generator)).tolist()
        prompts = torch.randint(0, LETTERS, (PROMPTS, PROMPT), generator=generator).repeat_interleave(GROUP, dim=0)
        tokens = sample(model, prompts, 1.0, generator)
        rewards, mask = reward(tokens), completion_mask(tokens)
        draws = [torch.rand(tokens.shape, generator=generator, dtype=torch.float64) for _ in range(updates)]
        with torch.no_grad():
            olds = [log_likelihood(model, tokens, *draw) for draw in zip(draws, shares, strict=True)]
            references = [log_likelihood(base, tokens, *draw) for draw in zip(draws, shares, strict=True)]
        for uniform, share, old, reference in zip(draws, shares, olds, references, strict=True):
            live = log_likelihood(model, tokens, uniform, share)
            optimizer.zero_grad()
            loss(live, old, reference, advantages(rewards), mask).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
        history.append(float(rewards.mean()))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train()):
        print(f"step {number:2d}  mean reward {value:.3f}")
