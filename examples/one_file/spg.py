"""SPG (arXiv:2510.09541) in one file: a toy model, no framework. Run it: ``python spg.py``.

Per training step: sample G responses to each prompt and make several updates that raise a lower estimate of good
responses and lower a mixture with an upper one of the others. Each mask hides part of one block and all that follows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LETTERS, EOS, MASK = 4, 4, 5
PROMPT, RESPONSE, GROUP, PROMPTS = 2, 6, 6, 4
WIDTH = PROMPT + RESPONSE
DRAWS, BLOCK = 2, 3


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
    """[B,L] bool: response tokens up to and including the first end token."""
    ends = (tokens == EOS) & (torch.arange(WIDTH) >= PROMPT)
    return (ends.cumsum(dim=1) - ends.long() == 0) & (torch.arange(WIDTH) >= PROMPT)


def reward(tokens: Tensor) -> Tensor:
    """[B]: share of response tokens that are letter 0."""
    return (tokens[:, PROMPT:] == 0).double().mean(dim=1)


def advantages(rewards: Tensor) -> Tensor:
    """[B]: reward minus the group's mean; rows of a prompt are adjacent."""
    groups = rewards.view(-1, GROUP)
    return (groups - groups.mean(dim=1, keepdim=True)).flatten()


def draw_masks(completion: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blocks and counts [B,DRAWS], and numbers and noise [B,DRAWS,L], of DRAWS masks."""
    rows = len(completion)
    length = completion.sum(dim=1, keepdim=True)
    order = torch.rand(rows, RESPONSE // BLOCK, generator=generator).argsort(dim=1)[:, :DRAWS]
    block = order % (-(-length // BLOCK))
    size = (length - block * BLOCK).clamp(max=BLOCK)
    count = 1 + (torch.rand(rows, DRAWS, generator=generator) * size).long()
    numbers, noise = (torch.rand(rows, DRAWS, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
    return block, count, numbers, noise


def estimates(
    model: nn.Module,
    tokens: Tensor,
    completion: Tensor,
    block: Tensor,
    count: Tensor,
    numbers: Tensor,
    noise: Tensor,
    power: float = 1.5,
    context: float = 0.15,
) -> tuple[Tensor, Tensor]:
    """Lower and upper estimate per token [B]."""
    place = torch.arange(WIDTH) - PROMPT
    completion, of_block = completion[:, None], torch.where(place < 0, -1, place // BLOCK)
    inside = completion & (of_block == block[:, :, None])
    later = ~completion & (place >= 0) | (of_block > block[:, :, None])
    rank = numbers.masked_fill(~inside, 2.0).argsort(dim=2).argsort(dim=2)
    hidden = inside & (rank < count[:, :, None]) | later | ~inside & ~later & (noise < context)
    clean, scored = tokens[:, None].expand(hidden.shape), hidden & completion
    logp = model(clean.masked_fill(hidden, MASK).flatten(0, 1)).log_softmax(dim=-1).view(*hidden.shape, -1)
    logp = logp.gather(3, clean[..., None])[..., 0]
    size = scored.sum(dim=2)
    lower = ((logp * scored).sum(dim=2) / size).mean(dim=1)
    share = size / completion.sum(dim=2)
    mean = ((power * logp).exp() * scored / share[:, :, None]).mean(dim=1)
    ever = scored.any(dim=1)
    upper = torch.where(ever, torch.where(ever, mean, 1.0).log(), 0.0).sum(dim=1) / ever.sum(dim=1) / power
    return lower, upper


def loss(lower: Tensor, upper: Tensor, advantage: Tensor, completion: Tensor, mix: float = 0.5) -> Tensor:
    """Minus the advantage times the estimate it asks for, weighted by length."""
    length = completion.sum(dim=1)
    chosen = torch.where(advantage > 0, lower, mix * upper + (1 - mix) * lower)
    return -(advantage * chosen * length).sum() / length.sum()


def train(steps: int = 20, updates: int = 4, lr: float = 0.02, seed: int = 0) -> list[float]:
    """Mean reward of each step's rollout."""
    generator = torch.Generator().manual_seed(seed)
    model = Toy(generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)
    history = []
    for _ in range(steps):
        prompts = torch.randint(0, LETTERS, (PROMPTS, PROMPT), generator=generator).repeat_interleave(GROUP, dim=0)
        tokens = sample(model, prompts, 1.0, generator)
        rewards, completion = reward(tokens), completion_mask(tokens)
        for _ in range(updates):
            lower, upper = estimates(model, tokens, completion, *draw_masks(completion, generator))
            optimizer.zero_grad()
            loss(lower, upper, advantages(rewards), completion).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
        history.append(float(rewards.mean()))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train()):
        print(f"step {number:2d}  mean reward {value:.3f}")
