"""TraceRL (arXiv:2509.06949) in one file: a toy model, no framework. Run it: ``python tracerl.py``.

Per training step: sample G responses to each prompt and remember at which forward each token was committed. Two
consecutive forwards are merged (shrink 2): their tokens are scored together, in the state before the first of them.
Every state weighs the same; the KL term keeps near the policy that sampled. With ``critic=True`` a value model (a
second toy with one number per position) gives every token an advantage along the trace.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LETTERS, EOS, MASK = 4, 4, 5
PROMPT, RESPONSE, GROUP, PROMPTS = 2, 6, 6, 4
WIDTH, STEPS, SHRINK = PROMPT + RESPONSE, RESPONSE // 2, 2


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
def sample(model: nn.Module, prompts: Tensor, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens and commit steps, both [B,L]: two tokens per forward, the most probable samples first."""
    tokens = torch.cat([prompts, torch.full((len(prompts), RESPONSE), MASK)], dim=1)
    commit_step = torch.full(tokens.shape, -1)
    for step in range(STEPS):
        probabilities = (model(tokens) / temperature).softmax(dim=-1)
        guess = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator).view(tokens.shape)
        confidence = probabilities.gather(2, guess[..., None])[..., 0].masked_fill(tokens != MASK, -1)
        chosen = confidence.topk(2, dim=1).indices
        tokens = tokens.scatter(1, chosen, guess.gather(1, chosen))
        commit_step = commit_step.scatter(1, chosen, step)
    return tokens, commit_step


def reward(tokens: Tensor) -> Tensor:
    """[B]: share of response tokens that are letter 0."""
    return (tokens[:, PROMPT:] == 0).double().mean(dim=1)


def advantages(rewards: Tensor) -> Tensor:
    """[B]: reward minus the mean of its group, over the group's population std; rows of a prompt are adjacent."""
    groups = rewards.view(-1, GROUP)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, unbiased=False, keepdim=True) + 1e-8)).flatten()


def states_before(tokens: Tensor, commit_step: Tensor) -> list[Tensor]:
    """For each merged forward [B,L] what it saw."""
    response = torch.arange(WIDTH) >= PROMPT
    return [tokens.masked_fill(response & (commit_step >= first), MASK) for first in range(0, STEPS, SHRINK)]


def log_likelihoods(model: nn.Module, tokens: Tensor, commit_step: Tensor) -> Tensor:
    """[K,B,L]: for each merged forward, log-probabilities in the state before it."""
    logps = [model(state).log_softmax(dim=-1) for state in states_before(tokens, commit_step)]
    return torch.stack([logp.gather(2, tokens[..., None])[..., 0] for logp in logps])


def values_of(critic: nn.Module, tokens: Tensor, commit_step: Tensor) -> Tensor:
    """[K,B,L]: what the value model expects in each state, read off its first output."""
    return torch.stack([critic(state)[..., 0] for state in states_before(tokens, commit_step)])


def trained(tokens: Tensor) -> Tensor:
    """[B,L] bool: the response up to and including its first end token."""
    response = (torch.arange(WIDTH) >= PROMPT).expand(tokens.shape)
    ends = (tokens == EOS) & response
    return response & (ends.cumsum(dim=1) - ends.long() == 0)


def loss(
    live: Tensor,
    old: Tensor,
    advantage: Tensor,
    commit_step: Tensor,
    mask: Tensor,
    clip: float = 0.2,
    beta: float = 0.01,
) -> Tensor:
    """Mean over states of the clipped ratio's token mean, plus the sum of k3 to the old policy."""
    ratio, a = (live - old).exp(), advantage[:, None] if advantage.dim() == 1 else advantage
    policy = -torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
    kl = (old - live).exp() + (live - old) - 1
    of_state = mask & (commit_step // SHRINK == torch.arange(len(live))[:, None, None])
    count = of_state.sum(dim=2)
    per_state = (policy * of_state).sum(dim=2) / count.clamp(min=1) + beta * (kl * of_state).sum(dim=2)
    return per_state.sum() / (count > 0).sum()


def along_trace(
    rewards: Tensor, values: Tensor, commit_step: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Advantages and returns [K,B,L] of each state's tokens; the reward comes at a row's last trained state."""
    of_state = mask & (commit_step // SHRINK == torch.arange(len(values))[:, None, None])
    count = of_state.sum(dim=2)
    mean = (values * of_state).sum(dim=2) / count.clamp(min=1)
    advantage, returned = torch.zeros_like(values), torch.zeros_like(values)
    for row in range(values.shape[1]):
        value_next = advantage_next = return_next = 0.0
        states = [k for k in range(len(values)) if count[k, row]]
        for k in reversed(states):
            gained = float(rewards[row]) if k == states[-1] else 0.0
            ahead = gained + gamma * value_next + gamma * lam * advantage_next
            return_next = gained + gamma * return_next
            advantage[k, row] = of_state[k, row] * (ahead - values[k, row])
            returned[k, row] = of_state[k, row] * return_next
            value_next, advantage_next = float(mean[k, row]), ahead - float(mean[k, row])
    return advantage, returned


def value_loss(
    live: Tensor, old: Tensor, returned: Tensor, commit_step: Tensor, mask: Tensor, clip: float = 0.2
) -> Tensor:
    """Mean over states of the token mean of half the larger squared error, with and without the clip."""
    bounded = old + (live - old).clamp(-clip, clip)
    error = torch.maximum((live - returned) ** 2, (bounded - returned) ** 2) / 2
    of_state = mask & (commit_step // SHRINK == torch.arange(len(live))[:, None, None])
    count = of_state.sum(dim=2)
    return ((error * of_state).sum(dim=2) / count.clamp(min=1)).sum() / (count > 0).sum()


def train(steps: int = 20, updates: int = 4, lr: float = 0.02, seed: int = 0, critic: bool = False) -> list[float]:
    """Mean reward of each step's rollout."""
    generator = torch.Generator().manual_seed(seed)
    model, judge = Toy(generator), Toy(generator)
    with torch.no_grad():
        judge.head.zero_()
    optimizers = [torch.optim.AdamW(part.parameters(), lr=lr, weight_decay=0.0) for part in (model, judge)]
    history = []
    for _ in range(steps):
        prompts = torch.randint(0, LETTERS, (PROMPTS, PROMPT), generator=generator).repeat_interleave(GROUP, dim=0)
        tokens, commit_step = sample(model, prompts, 1.0, generator)
        rewards, mask = reward(tokens), trained(tokens)
        advantage = advantages(rewards)
        with torch.no_grad():
            old, values = log_likelihoods(model, tokens, commit_step), values_of(judge, tokens, commit_step)
        if critic:
            advantage, returned = along_trace(advantage, values, commit_step, mask)
        for _ in range(updates):
            losses = [loss(log_likelihoods(model, tokens, commit_step), old, advantage, commit_step, mask)]
            if critic:
                expected = values_of(judge, tokens, commit_step)
                losses.append(value_loss(expected, values, returned, commit_step, mask))
            for part, optimizer, term in zip((model, judge), optimizers, losses, strict=False):
                optimizer.zero_grad()
                term.backward()
                nn.utils.clip_grad_norm_(part.parameters(), 1.0)
                optimizer.step()
        history.append(float(rewards.mean()))
    return history


if __name__ == "__main__":
    for name, with_critic in (("without a value model", False), ("with a value model", True)):
        print(name)
        for number, value in enumerate(train(critic=with_critic)):
            print(f"step {number:2d}  mean reward {value:.3f}")
