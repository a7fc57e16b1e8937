"""Likelihoods of continuations: unbiased by enumeration, near the exact value, independent of batches and order."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from dare_core.api import UserError
from dare_core.testing.enumeration import subset_table
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Address, Prompt, Rows
from dare_eval import likelihood as module
from dare_eval.choices import choice_items
from dare_eval.greedy import would_write
from dare_eval.likelihood import LikelihoodSettings, Target, likelihoods, split_tokens
from dare_eval.tasks.rows import Question

MASKED, BLOCK = ToyMasked(8, 16, 3), ToyBlock(8, 16, 3, block_length=4)
ADDRESS = Address(0, "test")
EXACT = LikelihoodSettings(estimator="exact")


def target(length: int, question: int = 0, prompt: int = 3) -> Target:
    tokens = [(2 * i + question) % 6 for i in range(prompt + length)]
    return Target(question=question, prompt=tuple(tokens[:prompt]), continuation=tuple(tokens[prompt:]))


def one(toy, what: Target, settings: LikelihoodSettings, address: Address = ADDRESS):
    return likelihoods(toy, [what], settings, address, rows_per_batch=64)[0]


def exact_elbo(toy, what: Target) -> float:
    """By the subset table: the sum over sets of CE / (n C(L, n)), within each block."""
    tokens = torch.tensor([[*what.prompt, *what.continuation]])
    response = torch.zeros_like(tokens, dtype=torch.bool)
    response[:, len(what.prompt) :] = True
    rows = Rows(
        tokens=tokens,
        prompt=~response,
        response=response,
        completion=response,
        sample_id=torch.tensor([0]),
        group=torch.tensor([0]),
        example_id=("x",),
    )
    table = subset_table(toy, rows)
    size = toy.facts.layout.block_length
    where = torch.arange(len(what.prompt), tokens.shape[1])
    blocks = where // size if size else where * 0
    total = 0.0
    for block in blocks.unique():
        inside = blocks == block
        length = int(inside.sum())
        for masked, logp in zip(table.masked, table.logp, strict=True):
            if bool((masked & ~inside).any()):
                continue
            n = int(masked.sum())
            total += float(logp.detach().sum()) / (n * math.comb(length, n))
    return total


@pytest.mark.parametrize("toy", [MASKED, BLOCK], ids=["masked", "block"])
@pytest.mark.parametrize("length", [1, 2, 4, 6])
def test_exact_equals_enumeration(toy, length):
    assert one(toy, target(length), EXACT).logp == pytest.approx(exact_elbo(toy, target(length)), abs=1e-9)


@pytest.mark.parametrize("toy", [MASKED, BLOCK], ids=["masked", "block"])
@pytest.mark.parametrize("length", [2, 5, 7])
def test_counted_masks_lie_within_three_standard_errors_of_enumeration(toy, length):
    settings = LikelihoodSettings(draws=512, strata=16)
    found = one(toy, target(length), settings)
    # two tokens in two blocks of the block toy leave nothing to chance
    assert found.stderr < 0.5
    assert (found.stderr == 0) == (toy is BLOCK and length == 2)
    assert abs(found.logp - exact_elbo(toy, target(length))) < 3 * found.stderr + 1e-9


@pytest.mark.parametrize("strata", [1, 3, 4, 5])
def test_every_draw_hides_every_count_equally_often(strata):
    """With uniform sets of a uniform count, the weighted sum has the ELBO as its mean: counts by construction."""
    settings = LikelihoodSettings(draws=6000 // strata * strata, strata=strata)
    hidden = module._stratified(torch.zeros(3, dtype=torch.int64), torch.tensor([3]), 0, settings, ADDRESS)
    counts = Counter((hidden.weight > 0).sum(dim=1).tolist())
    assert set(counts) == {1, 2, 3}
    assert all(abs(count / settings.draws - 1 / 3) < 0.03 for count in counts.values())
    sets = Counter(tuple(row.tolist()) for row in (hidden.weight > 0)[(hidden.weight > 0).sum(dim=1) == 1])
    assert all(abs(count / sum(sets.values()) - 1 / 3) < 0.05 for count in sets.values())


def test_the_mean_over_all_starts_and_orders_is_exact(monkeypatch):
    """Feed every pair of (start, order) once: the estimator's expectation, without sampling."""
    what, settings = target(3), LikelihoodSettings(draws=4, strata=2)
    orders = [[0.1, 0.5, 0.9], [0.1, 0.9, 0.5], [0.5, 0.1, 0.9], [0.5, 0.9, 0.1], [0.9, 0.1, 0.5], [0.9, 0.5, 0.1]]
    total = 0.0
    for start in (0.1, 0.5, 0.9):
        for order in orders:

            def fed(address, sample, draw, width, start=start, order=order):
                row = [start] * width if address.purpose.endswith("start") else order
                return torch.tensor([row] * len(sample), dtype=torch.float64)

            monkeypatch.setattr(module, "uniforms", fed)
            total += one(MASKED, what, settings).logp
    assert total / 18 == pytest.approx(exact_elbo(MASKED, what), abs=1e-9)


def test_one_token_needs_one_view_and_is_exact():
    found = one(MASKED, target(1), LikelihoodSettings())
    assert found.groups == (found.logp,)
    assert found.stderr == 0
    assert found.logp == pytest.approx(exact_elbo(MASKED, target(1)), abs=1e-12)


def test_bernoulli_masks_agree_but_are_noisier():
    settings = LikelihoodSettings(estimator="bernoulli", draws=4096, strata=64)
    found = one(MASKED, target(2), settings)
    counted = one(MASKED, target(2), LikelihoodSettings(draws=4096, strata=64))
    assert abs(found.logp - exact_elbo(MASKED, target(2))) < 4 * found.stderr
    assert found.stderr > 2 * counted.stderr


def test_estimates_depend_on_neither_batch_nor_order():
    targets = [target(length, question) for length, question in ((2, 0), (6, 1), (1, 2), (4, 3))]
    settings = LikelihoodSettings(draws=32, strata=8)

    def values(order, rows):
        found = likelihoods(MASKED, [targets[index] for index in order], settings, ADDRESS, rows_per_batch=rows)
        return {index: estimate.groups for index, estimate in zip(order, found, strict=True)}

    whole = values([0, 1, 2, 3], 64)
    for order, rows in (([0, 1, 2, 3], 1), ([3, 2, 1, 0], 7), ([2, 0], 16), ([1], 64)):
        for index, groups in values(order, rows).items():
            assert groups == pytest.approx(whole[index], abs=1e-12)


def test_choices_of_one_question_share_their_masks():
    settings = LikelihoodSettings(draws=32, strata=8)
    sets = [module._hidden_sets(MASKED, target(5, question), settings, ADDRESS).weight for question in (4, 4, 5)]
    assert torch.equal(sets[0], sets[1])
    assert not torch.equal(sets[0], sets[2])


def test_blanks_at_the_end_of_a_context_belong_to_the_continuation():
    toy = ToyMasked(48, 32, 0)
    prompt = Prompt("p", 0, text="ab ")
    before, after = split_tokens(toy.text, prompt, "cd", None)
    assert (toy.text.decode(before), toy.text.decode(after)) == ("ab", " cd")
    assert split_tokens(toy.text, prompt, "cd", 9)[1][-1] == 9


def test_a_continuation_that_does_not_fit_is_named():
    with pytest.raises(UserError, match="17 tokens; the model takes 16"):
        one(MASKED, target(14), LikelihoodSettings())


def test_the_likeliest_choice_is_chosen_by_sum_and_by_length():
    toy = ToyMasked(48, 32, 5)
    prompt = Prompt("p", 0, text="ab", reference="A")
    question = Question(prompt=prompt, continuations=("c", "cdef"), choices=("c", "cdef"), right=0)
    item = next(iter(choice_items(toy, [question], LikelihoodSettings(estimator="exact"), ADDRESS, 64)))
    sums = [choice["logp"] for choice in item["choices"]]
    assert item["chosen"]["accuracy"] == sums.index(max(sums))
    per_token = [logp / length for logp, length in zip(sums, (1, 4), strict=True)]
    assert item["chosen"]["accuracy_per_token"] == per_token.index(max(per_token))


def guided(what: Target, scale: float) -> float:
    """The formula of guidance for a continuation of one token, by hand."""
    tokens = torch.tensor([[*what.prompt, MASKED.facts.mask_id]])
    blind = torch.full_like(tokens, MASKED.facts.mask_id)
    where = torch.zeros_like(tokens, dtype=torch.bool)
    where[0, -1] = True
    seeing, unseeing = (
        MASKED.logits(one, torch.ones_like(where), where, layout=MASKED.facts.layout, prompt_length=torch.tensor([3]))
        for one in (tokens, blind)
    )
    logits = unseeing.double() + (scale + 1) * (seeing.double() - unseeing.double())
    return float(torch.log_softmax(logits, dim=-1)[0, what.continuation[0]].detach())


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_guidance_moves_the_logits_away_from_those_without_the_context(scale):
    found = one(MASKED, target(1), LikelihoodSettings(guidance=scale))
    assert found.logp == pytest.approx(guided(target(1), scale), abs=1e-6)
    assert found.logp != pytest.approx(one(MASKED, target(1), LikelihoodSettings()).logp, abs=1e-3)


def test_guided_estimates_lie_near_their_exact_value_and_depend_on_no_batch():
    exact = one(MASKED, target(4), LikelihoodSettings(estimator="exact", guidance=1.0))
    settings = LikelihoodSettings(draws=256, strata=16, guidance=1.0)
    found = likelihoods(MASKED, [target(4), target(2, 1)], settings, ADDRESS, rows_per_batch=5)[0]
    assert abs(found.logp - exact.logp) < 3 * found.stderr
    assert found.logp == pytest.approx(one(MASKED, target(4), settings).logp, abs=1e-6)


def test_guidance_is_refused_where_the_model_attends_in_blocks():
    with pytest.raises(UserError, match="attends in blocks"):
        one(BLOCK, target(2), LikelihoodSettings(guidance=0.5))


def written(prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Greedy decoding by hand: one token per forward, the surest first."""
    mask = MASKED.facts.mask_id
    tokens = torch.tensor([[*prompt, *[mask] * length]])
    for _ in range(length):
        where = tokens == mask
        logits = MASKED.logits(
            tokens, torch.ones_like(where), where, layout=MASKED.facts.layout, prompt_length=torch.tensor([len(prompt)])
        ).detach()
        logits[:, mask] = -torch.inf
        surest, token = torch.log_softmax(logits.double(), dim=-1).max(dim=-1)
        at = where[0].nonzero()[int(surest.argmax()), 0]
        tokens[0, at] = token[int(surest.argmax())]
    return tuple(tokens[0, len(prompt) :].tolist())


def test_only_what_the_model_would_write_itself_is_greedy():
    prompts = [(0, 1, 2), (3, 1), (5, 5, 4)]
    right = [Target(question=n, prompt=p, continuation=written(p, n + 1)) for n, p in enumerate(prompts)]
    wrong = [
        Target(question=n, prompt=t.prompt, continuation=(*t.continuation[:-1], (t.continuation[-1] + 1) % 6))
        for n, t in enumerate(right)
    ]
    assert would_write(MASKED, [*right, *wrong], 0.0, rows_per_batch=2) == [True] * 3 + [False] * 3
