"""JustGRPO (arXiv:2601.15165) in one file: a toy model, no framework. Run it: ``python justgrpo.py``.

Per training step: sample G responses to each prompt from left to right, one token per forward. The update scores every
token in the state in which it was sampled, so the log-probability is exact, and there is one update per rollout.
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
    """[B,L]: one token per forward, from left to right."""
    tokens = torch.cat([prompts, torch.full((len(prompts), RESPONSE), MASK)], dim=1)
    for place in range(PROMPT, WIDTH):
        probabilities = (model(tokens)[:, place] / temperature).softmax(dim=-1)
        tokens[:, place] = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    return tokens


def reward(tokens: Tensor) -> Tensor:
    """[B]: share of response tokens that are letter 0."""
    return (tokens[:, PROMPT:] == 0).double().mean(dim=1)


def advantages(rewards: Tensor) -> Tensor:
    """[B]: reward minus the mean of its group, over the group's std; rows of a prompt are adjacent."""
    groups = rewards.view(-1, GROUP)
    return ((groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + 1e-4)).flatten()


def log_likelihood(model: nn.Module, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """[B,R]: one forward per position, which sees the response up to it."""
    found = []
    for place in range(PROMPT, WIDTH):
        state = tokens.masked_fill(torch.arange(WIDTH) >= place, MASK)
        logp = (model(state)[:, place] / temperature).log_softmax(dim=-1)
        found.append(logp.gather(1, tokens[:, place, None])[:, 0])
    return torch.stack(found, dim=1)


def loss(live: Tensor, old: Tensor, advantage: Tensor, clip: float = 0.2) -> Tensor:
    """Clipped ratio over response length and rows with an advantage; tokens after the first end token count too."""
    ratio, a = (live - old).exp(), advantage[:, None]
    policy = -torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
    return policy.sum() / (RESPONSE * ((advantage != 0).sum() + 1e-5))


def train(steps: int = 30, lr: float = 0.03, seed: int = 0) -> list[float]:
    """Mean reward of each step's rollout."""
    generator = torch.Generator().manual_seed(seed)
    model = Toy(generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    history = []
    for _ in range(steps):
        prompts = torch.randint(0, LETTERS, (PROMPTS, PROMPT), generator=generator).repeat_interleave(GROUP, dim=0)
        tokens = sample(model, prompts, 1.0, generator)
        rewards = reward(tokens)
        live = log_likelihood(model, tokens)
        optimizer.zero_grad()
        loss(live, live.detach(), advantages(rewards)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append(float(rewards.mean()))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train()):
        print(f"step {number:2d}  mean reward {value:.3f}")
