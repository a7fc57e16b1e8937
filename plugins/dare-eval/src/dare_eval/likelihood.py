"""Log-likelihood of given continuations, by masking them.

For a continuation of L tokens and a set m of n of them hidden, CE(m) is the sum of their negative log-probabilities
given the rest. With n uniform on 1..L and m uniform among the sets of n, the mean of (L/n) CE(m) is the ELBO on -log p
(LLaDA, arXiv 2502.09992, eq. 6). Estimators:

* ``count-stratified``: counts in even steps around 1..L from one random start per group of ``strata`` draws (LLaDA's
  evaluation). A continuation of one token needs one view and is exact.
* ``bernoulli``: each token hidden with probability p, weight 1/p, p in even steps around [eps, 1] (Dream's evaluation,
  arXiv 2508.15487). Noisy for short continuations, since a draw may hide nothing.
* ``exact``: every set of every size; for short continuations.

Block models: the sum over blocks of the same estimate within each block, given clean earlier blocks; every view hides
tokens in all blocks at once, and blocks are seen as the model's layout says.

With guidance s the probabilities are those of logits u + (s + 1)(c - u), where u sees the whole context masked (LLaDA's
evaluation), at twice the forwards.

Hidden sets are addressed by (seed, question, draw, position): all continuations of a question meet the same numbers,
and neither batches nor other questions move them. The standard error comes from the independent groups of draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dare_core.api import Problem, UserError
from dare_core.diffusion.counts import group_ranks, systematic_counts, uniform_counts
from dare_core.diffusion.layouts import block_index
from dare_core.diffusion.seeds import uniforms
from dare_core.interfaces import ModelAdapter, TextCodec
from dare_core.types import Address, ModelFacts, Prompt, Views

Estimator = Literal["count-stratified", "bernoulli", "exact"]
#: smallest probability of hiding a token under ``bernoulli`` (Dream)
EPS = 1e-3
#: longest block or continuation that ``exact`` enumerates
LONGEST_EXACT = 10


@dataclass(frozen=True, kw_only=True)
class LikelihoodSettings:
    """How likelihoods are estimated.

    Attributes:
        estimator: see the module's head.
        draws: views per continuation.
        strata: draws with one random start; ``draws`` / ``strata`` groups give the standard error.
        end_token: whether the family's end token belongs to the continuation (Dream's evaluation).
        guidance: scale s of classifier-free guidance; 0 = off.
    """

    estimator: Estimator = "count-stratified"
    draws: int = 128
    strata: int = 16
    end_token: bool = False
    guidance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """One continuation to score.

    Attributes:
        question: addresses the draws; equal for continuations that are compared.
        prompt: token ids of the context.
        continuation: token ids that are scored.
    """

    question: int
    prompt: tuple[int, ...]
    continuation: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """The estimate for one target, in nats.

    Attributes:
        logp: lower bound on the log-probability of the continuation, negative.
        groups: estimates by independent groups of draws; their mean is ``logp``. One entry where nothing is random.
    """

    logp: float
    groups: tuple[float, ...]

    @property
    def stderr(self) -> float:
        """Standard error of ``logp``; 0 where nothing is random."""
        return standard_error(self.groups)


def standard_error(groups: Sequence[float]) -> float:
    """Standard error of the mean of independent group estimates; 0 for one exact value."""
    size = len(groups)
    if size == 1:
        return 0.0
    middle = sum(groups) / size
    return math.sqrt(sum((value - middle) ** 2 for value in groups) / (size - 1) / size)


def split_tokens(codec: TextCodec, prompt: Prompt, continuation: str, end: int | None) -> tuple[list[int], list[int]]:
    """Token ids of context and continuation.

    Plain text: blanks at the context's end move to the continuation, the joined text is encoded, and its first tokens,
    as many as the context alone has, are the context. Chat turns: the continuation is what the model would write behind
    the open header.

    Raises:
        UserError: nothing is left to score.
    """
    if prompt.text is None:
        before = codec.encode_prompt(prompt)
        target = codec.encode_completion(continuation)[:-1]
    else:
        context = prompt.text.rstrip()
        joined = context + prompt.text[len(context) :] + continuation
        encoded = codec.encode_prompt(Prompt(prompt.id, prompt.index, text=joined))
        length = len(codec.encode_prompt(Prompt(prompt.id, prompt.index, text=context)))
        before, target = encoded[:length], encoded[length:]
    if not target:
        raise UserError(Problem(f"continuation {continuation!r} has no tokens of its own", where=f"row '{prompt.id}'"))
    return before, target + ([] if end is None else [end])


def check_settings(facts: ModelFacts, settings: LikelihoodSettings) -> int:
    """The id of the model's mask token.

    Raises:
        UserError: it has none, or guidance is asked for and it attends in blocks.
    """
    if facts.mask_id is None:
        raise UserError(Problem(f"'{facts.kind}' has no mask token, so continuations cannot be hidden"))
    if settings.guidance and facts.layout.kind != "full":
        message = f"'{facts.kind}' attends in blocks; guided likelihoods are for models that see whole rows"
        raise UserError(Problem(message, path="eval.likelihood.guidance"))
    return facts.mask_id


def likelihoods(
    adapter: ModelAdapter,
    targets: Sequence[Target],
    settings: LikelihoodSettings,
    address: Address,
    *,
    rows_per_batch: int,
) -> list[Likelihood]:
    """One estimate per target, in order; up to rounding independent of ``rows_per_batch`` and of the other targets.

    Raises:
        UserError: the model has no mask token, or a target does not fit it.
    """
    facts = adapter.facts
    mask = check_settings(facts, settings)
    for target in targets:
        length = len(target.prompt) + len(target.continuation)
        if length > facts.max_positions:
            raise UserError(
                Problem(f"context and continuation have {length} tokens; the model takes {facts.max_positions}",
                        where=f"question {target.question}")
            )  # fmt: skip
    hidden = [_hidden_sets(adapter, target, settings, address) for target in targets]
    # A view that hides nothing costs nothing.
    rows = [
        (index, draw) for index, one in enumerate(hidden) for draw in one.weight.any(dim=1).nonzero()[:, 0].tolist()
    ]
    values = [[0.0] * len(one.weight) for one in hidden]
    with _evaluating(adapter):
        for start in range(0, len(rows), rows_per_batch):
            batch = rows[start : start + rows_per_batch]
            views = _views(adapter, targets, hidden, batch, mask)
            scores = _logp(adapter, views, settings.guidance, mask).to("cpu", torch.float64)
            for (index, draw), logp, scored, weight in zip(
                batch, scores, views.scored.cpu(), views.weight.cpu(), strict=True
            ):
                values[index][draw] = math.fsum((logp[scored] * weight[scored].to(torch.float64)).tolist())
    return [_estimate(one, found) for one, found in zip(hidden, values, strict=True)]


@dataclass(frozen=True, kw_only=True)
class _Hidden:
    """Hidden sets of one target: weight [D,L] of each hidden token of its continuation, 0 where it is not hidden;
    share [D] of each draw in the estimate; group [D] number of its independent group."""

    weight: Tensor
    share: Tensor
    group: Tensor


def _hidden_sets(adapter: ModelAdapter, target: Target, settings: LikelihoodSettings, address: Address) -> _Hidden:
    part = _parts(adapter, target)
    sizes = torch.bincount(part)
    if settings.estimator == "exact":
        return _every_set(part, sizes)
    if settings.estimator == "bernoulli":
        return _independent(len(part), target.question, settings, address)
    if int(sizes.max()) == 1:
        return _every_set(part, sizes)
    return _stratified(part, sizes, target.question, settings, address)


def _parts(adapter: ModelAdapter, target: Target) -> Tensor:
    """[L] int64 block of each continuation token, from 0; one block where every position sees every other."""
    length, layout = len(target.continuation), adapter.facts.layout
    if layout.kind == "full":
        return torch.zeros(length, dtype=torch.int64)
    valid = torch.ones((1, len(target.prompt) + length), dtype=torch.bool)
    blocks = block_index(valid, torch.tensor([len(target.prompt)]), layout)[0, len(target.prompt) :]
    return blocks - blocks.min()


def _stratified(part: Tensor, sizes: Tensor, question: int, settings: LikelihoodSettings, address: Address) -> _Hidden:
    draw = torch.arange(settings.draws)
    group = draw // settings.strata
    sample = torch.full_like(draw, question)
    start = uniform_counts(
        uniforms(address.within("start"), sample, group, len(sizes)), 1, sizes.expand(settings.draws, -1)
    )
    index = (draw % settings.strata)[:, None].expand_as(start)
    counts = systematic_counts(
        start.reshape(-1), index.reshape(-1), settings.strata, 1, sizes.expand_as(start).reshape(-1)
    ).reshape(start.shape)
    numbers = uniforms(address.within("hidden"), sample, draw, len(part))
    place, size = group_ranks(numbers, part.expand(settings.draws, -1))
    count = counts[:, part]
    weight = torch.where(place < count, size.to(torch.float64) / count, 0.0)
    return _Hidden(weight=weight, share=_even(settings.draws), group=group)


def _independent(length: int, question: int, settings: LikelihoodSettings, address: Address) -> _Hidden:
    draw = torch.arange(settings.draws)
    group = draw // settings.strata
    sample = torch.full_like(draw, question)
    start = uniforms(address.within("start"), sample, group, 1)[:, 0]
    time = (start + (draw % settings.strata) / settings.strata) % 1.0
    probability = ((1 - EPS) * time + EPS)[:, None]
    hidden = uniforms(address.within("hidden"), sample, draw, length) < probability
    return _Hidden(weight=torch.where(hidden, 1 / probability, 0.0), share=_even(settings.draws), group=group)


def _every_set(part: Tensor, sizes: Tensor) -> _Hidden:
    """Every set of hidden tokens of every block, one block at a time: the sum over sets m of CE(m) / (n C(L, n))."""
    longest = int(sizes.max())
    if longest > LONGEST_EXACT:
        message = f"'exact' enumerates at most {LONGEST_EXACT} tokens of a block, and one has {longest}"
        raise UserError(Problem(message, path="eval.likelihood.estimator", hint="use count-stratified"))
    if longest == 1:
        every = torch.ones((1, len(part)), dtype=torch.float64)
        return _Hidden(weight=every, share=torch.ones(1), group=torch.zeros(1))
    rows = []
    for block, size in enumerate(sizes.tolist()):
        members = (part == block).nonzero()[:, 0].tolist()
        for n in range(1, size + 1):
            for chosen in itertools.combinations(members, n):
                row = torch.zeros(len(part), dtype=torch.float64)
                row[list(chosen)] = 1 / (n * math.comb(size, n))
                rows.append(row)
    return _Hidden(weight=torch.stack(rows), share=torch.ones(len(rows)), group=torch.zeros(len(rows)))


def _even(draws: int) -> Tensor:
    return torch.full((draws,), 1 / draws, dtype=torch.float64)


def _views(
    adapter: ModelAdapter,
    targets: Sequence[Target],
    hidden: Sequence[_Hidden],
    batch: Sequence[tuple[int, int]],
    mask: int,
) -> Views:
    chosen = [targets[index] for index, _ in batch]
    width = max(len(one.prompt) + len(one.continuation) for one in chosen)
    shape = (len(batch), width)
    tokens = torch.full(shape, adapter.facts.pad_id, dtype=torch.int64)
    valid, scored = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    weight = torch.zeros(shape, dtype=torch.float64)
    for row, (one, (index, draw)) in enumerate(zip(chosen, batch, strict=True)):
        start, end = len(one.prompt), len(one.prompt) + len(one.continuation)
        tokens[row, :end] = torch.tensor([*one.prompt, *one.continuation])
        valid[row, :end] = True
        weight[row, start:end] = hidden[index].weight[draw]
        scored[row, start:end] = weight[row, start:end] > 0
    views = Views(
        inputs=torch.where(scored, mask, tokens),
        targets=tokens,
        valid=valid,
        scored=scored,
        weight=weight,
        row=torch.tensor([index for index, _ in batch]),
        draw=torch.tensor([draw for _, draw in batch]),
        prompt_length=torch.tensor([len(one.prompt) for one in chosen]),
        layout=adapter.facts.layout,
    )
    return views.to(next(adapter.module.parameters()).device)


def _logp(adapter: ModelAdapter, views: Views, guidance: float, mask: int) -> Tensor:
    """[N,L] log-probabilities of the targets at scored positions."""
    if not guidance:
        return adapter.token_logp(views).logp
    column = torch.arange(views.inputs.shape[1], device=views.inputs.device)
    blind = views.inputs.masked_fill(column < views.prompt_length[:, None], mask)
    seeing, unseeing = (_logits(adapter, views, tokens) for tokens in (views.inputs, blind))
    guided = torch.log_softmax(unseeing + (guidance + 1) * (seeing - unseeing), dim=-1)
    found = guided.gather(1, views.targets[views.scored][:, None])[:, 0]
    return torch.zeros(views.inputs.shape, dtype=found.dtype, device=found.device).masked_scatter(views.scored, found)


def _logits(adapter: ModelAdapter, views: Views, tokens: Tensor) -> Tensor:
    """[M,V] float64 logits at scored positions."""
    logits = adapter.logits(tokens, views.valid, views.scored, layout=views.layout, prompt_length=views.prompt_length)
    return logits.to(torch.float64)


def _estimate(hidden: _Hidden, values: Sequence[float]) -> Likelihood:
    groups: dict[int, list[float]] = {}
    for group, share, value in zip(hidden.group.tolist(), hidden.share.tolist(), values, strict=True):
        groups.setdefault(int(group), []).append(share * value)
    estimates = tuple(len(groups) * math.fsum(parts) for parts in groups.values())
    return Likelihood(logp=sum(estimates) / len(estimates), groups=estimates)


@contextmanager
def _evaluating(adapter: ModelAdapter) -> Iterator[None]:
    training = adapter.module.training
    adapter.module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        adapter.module.train(training)
