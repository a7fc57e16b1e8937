"""Approximate caches: exact where nothing is stale, one result per row, and records that say what they are."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from tests.executor.families import FAMILIES, Family

from dare_core.errors import UserError
from dare_core.interfaces import ModelAdapter, RolloutRequest
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.types import Address, Prompt, Rollout
from dare_fastdllm.backend import FastBackend
from dare_fastdllm.config import FastSection

FULL = [family for family in FAMILIES if family.kind in ("llada", "llada-moe", "dream")]
TEXTS = ("a", "bcdefg", "hijklmnopq", "rs", "tuvwx", "yz")


@cache
def model(kind: str) -> ModelAdapter:
    family: Family = next(family for family in FAMILIES if family.kind == kind)
    return family.load(family.write(Path(mkdtemp()), seed=3, **family.spread))


def rollout(kind: str, texts: tuple[str, ...] = TEXTS, ids: tuple[int, ...] | None = None, **section: Any) -> Rollout:
    config = FastSection(**{"new_tokens": 12, "block_length": 4, **section})
    return decoded(FastBackend(config, model(kind)), texts, ids)


def decoded(backend: Any, texts: tuple[str, ...], ids: tuple[int, ...] | None = None) -> Rollout:
    prompts = [Prompt(text, index, text=text) for index, text in zip(ids or range(len(texts)), texts, strict=True)]
    settings = backend.config.settings(backend.adapter.facts.layout)
    return backend.generate(RolloutRequest(prompts=prompts, samples=1, settings=settings, address=Address(4, "test")))


def responses(rollout: Rollout) -> list[list[int]]:
    return [row[kept].tolist() for row, kept in zip(rollout.tokens, rollout.response, strict=True)]


@pytest.mark.parametrize("family", FULL, ids=lambda family: family.kind)
@pytest.mark.parametrize("window", ["prefix", "dual"])
def test_a_row_does_not_depend_on_its_batch(family: Family, window: str):
    protocol = {"cache": window, "selection": {"kind": "low-confidence"}, "temperature": 0.7}
    together = rollout(family.kind, rows_per_batch=3, **protocol)
    for index, text in enumerate(TEXTS):
        alone = rollout(family.kind, (text,), (index,), **protocol)
        assert responses(alone)[0] == responses(together)[index]
        assert alone.forwards[0] == together.forwards[index]


@pytest.mark.parametrize("kind", ["llada", "llada-moe"])
@pytest.mark.parametrize("window", ["prefix", "dual"])
def test_refreshing_at_every_forward_is_exact(kind: str, window: str):
    exact = NativeSection(new_tokens=12, block_length=4, selection={"kind": "factor"})
    reference = decoded(NativeBackend(exact, model(kind)), TEXTS)
    found = rollout(kind, cache=window, refresh_every=1, selection={"kind": "factor"}, check_agreement=4)
    assert responses(found) == responses(reference)
    assert torch.equal(found.trace.commit_step, reference.trace.commit_step)
    assert found.agreement == 1.0


@pytest.mark.parametrize("family", FULL, ids=lambda family: family.kind)
@pytest.mark.parametrize("length", range(1, 10))
def test_every_length_is_decoded_to_its_end(family: Family, length: int):
    found = rollout(family.kind, new_tokens=length, cache="dual", refresh_every=3)
    assert (found.response.sum(dim=1) == length).all()
    assert not (found.tokens[found.response] == model(family.kind).facts.mask_id).any()
    assert ((found.trace.commit_step >= 0) == found.response).all()


def test_stale_states_are_declared_and_measured():
    found = rollout("llada", cache="dual", check_agreement=6)
    assert FastBackend.exactness == "approximate"
    assert found.logp is None
    assert 0 < found.agreement < 1
    assert rollout("llada", cache="dual").agreement is None


def test_without_cache_it_is_the_exact_decoder():
    config = FastSection(new_tokens=8, cache="none")
    backend = FastBackend(config, model("llada"))
    assert backend.exactness == "exact"
    assert decoded(backend, TEXTS).logp is not None


def test_in_shifted_families_a_blocks_first_forward_commits_its_first_token():
    found = rollout("dream", cache="prefix", selection={"kind": "low-confidence"})
    step, prompt = found.trace.commit_step, found.prompt_length
    for row, start in enumerate(prompt.tolist()):
        for block in range(3):
            assert step[row, start + 4 * block] == 4 * block


def test_credit_prefers_what_was_preferred():
    plain = rollout("llada", cache="none", selection={"kind": "low-confidence"})
    flat = rollout("llada", cache="none", selection={"kind": "low-confidence"}, credit={"weight": 0.0})
    heavy = rollout("llada", cache="none", selection={"kind": "low-confidence"}, credit={"weight": 50.0})
    assert responses(flat) == responses(plain)
    assert responses(heavy) != responses(plain)


def test_guidance_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match="take the native backend"):
        FastSection(new_tokens=8, guidance=1.0)


def test_block_models_are_refused():
    config = FastSection(new_tokens=8)
    with pytest.raises(UserError, match="no approximate cache"):
        decoded(FastBackend(config, model("sdar")), ("a",))


def test_a_window_without_its_row_is_refused():
    held = model("llada").open_window_cache(1, 4)
    tokens, everywhere = torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4, dtype=torch.bool)
    window = torch.tensor([[False, False, True, True]])
    with pytest.raises(ValueError, match="its cache holds 0"):
        held.logits(tokens, everywhere, window, window, slots=torch.zeros(1, dtype=torch.int64))
    held.logits(tokens, everywhere, everywhere, window, slots=torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="not computed"):
        held.logits(tokens, everywhere, window, everywhere, slots=torch.zeros(1, dtype=torch.int64))
