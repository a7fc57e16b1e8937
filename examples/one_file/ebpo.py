"""EBPO (arXiv:2602.08676) in one file: a toy block model, no framework. Run it: ``python ebpo.py``.

Per training step: sample G responses to each prompt and make several updates with one ratio per response. Every view
hides tokens in every block, at levels spread evenly over all blocks and views. The ratio is taken per token here: the
published one, of the whole sequence, is clipped on nearly every row after one update. Every response position is a
target here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LETTERS, EOS, MASK = 4, 4, 5
PROMPT, RESPONSE, GROUP, PROMPTS = 2, 6, 6, 4
WIDTH = PROMPT + RESPONSE
DRAWS, BLOCK = 4, 2


class Toy(nn.Module):
    """A block model of a few hundred parameters: a noisy block sees itself and the clean blocks before it."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()

        def table(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.5)

        self.token, self.place = table(MASK + 1, 16), table(WIDTH, 16)
        self.mix, self.head = table(16, 16), table(16, MASK + 1)

    def forward(self, noisy: Tensor, clean: Tensor) -> Tensor:
        """[B,L] each -> [B,L,V] logits of the token at each position; the mask is never predicted."""
        seen, known = (torch.tanh(self.token[tokens] + self.place) for tokens in (noisy, clean))
        blocks = [part.sum(dim=1) for part in known.split(BLOCK, dim=1)]
        before = torch.stack([sum(blocks[:i], torch.zeros_like(blocks[0])) for i in range(len(blocks))], dim=1)
        own = torch.stack([part.sum(dim=1) for part in seen.split(BLOCK, dim=1)], dim=1)
        context = ((before + own) / WIDTH).repeat_interleave(BLOCK, dim=1)
        hidden = torch.tanh(seen + context @ self.mix)
        never = torch.zeros(MASK + 1, dtype=torch.float64).index_fill(0, torch.tensor([MASK]), -1e9)
        return hidden @ self.head + never


@torch.no_grad()
def sample(model: nn.Module, prompts: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """[B,L]: block by block, left to right, both tokens of a block in one forward."""
    tokens = torch.cat([prompts, torch.full((len(prompts), RESPONSE), MASK)], dim=1)
    for start in range(PROMPT, WIDTH, BLOCK):
        probabilities = (model(tokens, tokens) / temperature).softmax(dim=-1)
        guess = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator).view(tokens.shape)
        tokens[:, start : start + BLOCK] = guess[:, start : start + BLOCK]
    return tokens


def reward(tokens: Tensor) -> Tensor:
    """[B]: share of response tokens that are letter 0."""
    return (tokens[:, PROMPT:] == 0).double().mean(dim=1)


def advantages(rewards: Tensor) -> Tensor:
    """[B]: reward minus the group's mean, divided by the group's standard deviation; rows of a prompt are adjacent."""
    groups = rewards.view(-1, GROUP)
    return ((groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + 1e-6)).flatten()


def block_elbo(model: nn.Module, tokens: Tensor, first: Tensor, numbers: Tensor) -> Tensor:
    """[B] mean over draws of the block ELBO, for first levels [B] and ``numbers`` [B,DRAWS,L], the smallest hidden."""
    blocks = RESPONSE // BLOCK
    cell = torch.arange(DRAWS * blocks).view(DRAWS, blocks)
    level = (first[:, None, None] + cell / (DRAWS * blocks)) % 1
    count = (level * BLOCK).long().clamp(max=BLOCK - 1) + 1
    rank = numbers[:, :, PROMPT:].unflatten(2, (blocks, BLOCK)).argsort(dim=3).argsort(dim=3)
    hidden = torch.zeros(numbers.shape, dtype=torch.bool)
    hidden[:, :, PROMPT:] = (rank < count[..., None]).flatten(2)
    clean = tokens[:, None].expand(numbers.shape)
    noisy = clean.masked_fill(hidden, MASK)
    logp = model(noisy.flatten(0, 1), clean.flatten(0, 1)).log_softmax(dim=-1).view(*numbers.shape, -1)
    chosen = (logp.gather(3, clean[..., None])[..., 0] * hidden)[:, :, PROMPT:]
    return (chosen * (BLOCK / count).repeat_interleave(BLOCK, dim=2)).sum(dim=2).mean(dim=1)


def loss(live: Tensor, old: Tensor, advantage: Tensor, clip: float = 0.2) -> Tensor:
    """Clipped sequence ratio per token."""
    ratio = ((live - old) / RESPONSE).exp()
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).mean()


def train(steps: int = 20, updates: int = 2, lr: float = 0.02, seed: int = 0) -> list[float]:
    """Mean reward of each step's rollout."""
    generator = torch.Generator().manual_seed(seed)
    model = Toy(generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    history = []
    for _ in range(steps):
        prompts = torch.randint(0, LETTERS, (PROMPTS, PROMPT), generator=generator).repeat_interleave(GROUP, dim=0)
        tokens = sample(model, prompts, 1.0, generator)
        rewards = reward(tokens)
        draws = [
            (
                torch.rand(len(tokens), generator=generator, dtype=torch.float64),
                torch.rand(len(tokens), DRAWS, WIDTH, generator=generator, dtype=torch.float64),
            )
            for _ in range(updates)
        ]
        with torch.no_grad():
            olds = [block_elbo(model, tokens, *draw) for draw in draws]
        for draw, old in zip(draws, olds, strict=True):
            optimizer.zero_grad()
            loss(block_elbo(model, tokens, *draw), old, advantages(rewards)).backward()
            optimizer.step()
        history.append(float(rewards.mean()))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train()):
        print(f"step {number:2d}  mean reward {value:.3f}")
