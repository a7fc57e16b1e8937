"""Estimators of the ELBO family by their options, and rows for them."""

from __future__ import annotations

import torch
from tests.made_inputs import rows_of
from torch import Tensor

from dare_algos_elbo.estimators import config
from dare_algos_elbo.estimators.bernoulli import Bernoulli
from dare_algos_elbo.estimators.block_stratified import BlockStratified
from dare_algos_elbo.estimators.count_stratified import CountStratified
from dare_algos_elbo.estimators.espo import Espo
from dare_algos_elbo.estimators.spg import Spg
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import Rows

MASKED, BLOCK = ToyMasked(5, 8, seed=3), ToyBlock(5, 8, seed=3, block_length=2)


def counts(**options):
    return CountStratified(config.CountStratifiedSection(**options))


def espo(**options):
    return Espo(config.EspoEstimatorSection(**options))


def blocks(**options):
    return BlockStratified(config.BlockStratifiedSection(**options))


def bernoulli(**options):
    return Bernoulli(config.BernoulliSection(**options))


def spg(**options):
    return Spg(config.SpgEstimatorSection(**options))


def one_row(adapter, answer: int = 3) -> Rows:
    """A prompt of two tokens and an answer of ``answer``."""
    tokens = torch.arange(2 + answer)[None] % (adapter.facts.vocab_size - 2)
    prompt = (torch.arange(2 + answer) < 2)[None]
    return rows_of(tokens, prompt, ~prompt)


def taken(rows: Rows, index: Tensor, extra: int = 0) -> Rows:
    """Rows at ``index`` with ``extra`` columns of padding on the right."""
    columns = {
        name: torch.nn.functional.pad(getattr(rows, name)[index], (0, extra))
        for name in ("tokens", "prompt", "response", "completion")
    }
    ids = {name: getattr(rows, name)[index] for name in ("sample_id", "group")}
    return Rows(**columns, **ids, example_id=tuple(rows.example_id[i] for i in index.tolist()))
