"""The decoder draws from the distribution that it should, by enumeration of everything it might do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from tests.executor.decoding import decode, settings, single_row

from dare_core.testing.decoder_enumeration import trajectory_logp
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import DecodingSettings, Rows, Views

TOYS = [ToyMasked(4, 4, 7), ToyBlock(4, 4, 7, block_length=2)]
PROMPT = [1]


def all_courses(protocol: DecodingSettings, forwards: int) -> Iterator[tuple[Rows, torch.Tensor]]:
    """Every response over the three tokens that can be predicted, with every assignment of commit steps."""
    count = protocol.new_tokens
    for tokens in itertools.product(range(3), repeat=count):
        row = single_row([*PROMPT, *tokens], prompt=len(PROMPT))
        for steps in itertools.product(range(forwards), repeat=count):
            yield row, torch.tensor([[-1] * len(PROMPT) + list(steps)])


def replayed_logp(toy: ToyMasked, row: Rows, steps: torch.Tensor, protocol: DecodingSettings) -> float:
    """Sum over forwards of the log-probabilities of the tokens each committed: what replay estimators compute."""
    total = 0.0
    for step in range(int(steps.max()) + 1):
        here = steps == step
        views = Views(
            inputs=row.tokens.masked_fill(row.response & (steps >= step), toy.facts.mask_id),
            targets=row.tokens,
            valid=row.valid,
            scored=here,
            weight=here.double(),
            row=torch.zeros(1, dtype=torch.int64),
            draw=torch.tensor([step]),
            prompt_length=row.prompt_length,
            layout=toy.facts.layout,
            temperature=protocol.temperature,
        )
        with torch.no_grad():
            total += float(toy.token_logp(views).logp.sum())
    return total


@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("kind", ["low-confidence", "topk-margin", "entropy", "left-to-right", "random"])
def test_frequencies_of_tokens_and_commit_steps_are_the_enumerated_probabilities(toy: ToyMasked, kind: str) -> None:
    block, forwards = (3, 2) if toy.facts.diffusion == "masked" else (2, 3)
    protocol = settings(3, block, 2, temperature=0.8, selection=kind)
    samples = 6000
    result = decode(toy, [PROMPT] * samples, protocol)
    code = torch.cat([result.tokens[:, 1:], result.commit_step[:, 1:]], dim=1) @ (4 ** torch.arange(6))
    seen = code.bincount(minlength=4**6) / samples
    total = 0.0
    for row, steps in all_courses(protocol, forwards):
        probability = math.exp(trajectory_logp(toy, row, steps, protocol))
        total += probability
        at = int(torch.cat([row.tokens[0, 1:], steps[0, 1:]]) @ (4 ** torch.arange(6)))
        assert abs(seen[at] - probability) <= 5 * math.sqrt(probability * (1 - probability) / samples) + 1e-12
    assert total == pytest.approx(1)


@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("kind", ["topk-margin", "entropy", "left-to-right"])
def test_a_course_has_the_product_of_its_replayed_probabilities_where_the_rule_sees_no_tokens(
    toy: ToyMasked, kind: str
) -> None:
    block, forwards = (3, 2) if toy.facts.diffusion == "masked" else (2, 3)
    protocol = settings(3, block, 2, temperature=0.8, selection=kind)
    possible = 0
    for row, steps in all_courses(protocol, forwards):
        logp = trajectory_logp(toy, row, steps, protocol)
        if logp > -math.inf:
            possible += 1
            assert logp == pytest.approx(replayed_logp(toy, row, steps, protocol), abs=1e-9)
    assert possible == 27, "every response has one order of commits"


def test_choosing_by_the_proposed_tokens_makes_a_course_differ_from_the_product() -> None:
    toy, protocol = TOYS[0], settings(3, 3, 2, temperature=0.8)
    gaps = []
    for row, steps in all_courses(protocol, 2):
        if sorted(steps[0, 1:].tolist()) == [0, 0, 1]:
            drawn = math.exp(trajectory_logp(toy, row, steps, protocol))
            gaps.append(abs(drawn - math.exp(replayed_logp(toy, row, steps, protocol))))
    assert max(gaps) > 0.01
