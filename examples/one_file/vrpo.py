"""VRPO (arXiv:2505.19223) in one file: a toy model, no framework. Run it: ``python vrpo.py``.

DPO on ELBO estimates. Every answer is scored on several masks whose numbers of hidden tokens are spread evenly; the
trained and the reference policy meet the same masks, so their difference varies little.
"""

from __future__ import annotations

import copy

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


def loss(live: Tensor, reference: Tensor, beta: float = 0.2) -> Tensor:
    """DPO on estimates [2P]: chosen and rejected answers in turn."""
    gain = (live - reference).view(-1, 2)
    return -nn.functional.logsigmoid(beta * (gain[:, 0] - gain[:, 1])).mean()


def pairs(generator: torch.Generator) -> Tensor:
    """[2P,L]: for each prompt an answer of many and one of few letters 0."""
    prompts = torch.randint(0, LETTERS, (PROMPTS, PROMPT), generator=generator)
    answers = torch.randint(0, LETTERS, (2, PROMPTS, RESPONSE), generator=generator)
    answers[0, :, ::2], answers[1] = 0, answers[1].clamp(min=1)
    return torch.cat([prompts.expand(2, -1, -1), answers], dim=2).transpose(0, 1).flatten(0, 1)


def train(steps: int = 30, lr: float = 0.01, seed: int = 0) -> list[float]:
    """Margin of each step's pairs, in nats, before its update."""
    generator = torch.Generator().manual_seed(seed)
    model = Toy(generator)
    base = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    history = []
    for _ in range(steps):
        tokens = pairs(generator)
        count = draw_counts(len(tokens), generator)
        numbers = torch.rand(len(tokens), DRAWS, WIDTH, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            reference = elbo_draws(base, tokens, count, numbers).mean(dim=1)
        live = elbo_draws(model, tokens, count, numbers).mean(dim=1)
        optimizer.zero_grad()
        loss(live, reference).backward()
        optimizer.step()
        gain = (live.detach() - reference).view(-1, 2)
        history.append(float((gain[:, 0] - gain[:, 1]).mean()))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train()):
        print(f"step {number:2d}  margin {value:.3f}")
