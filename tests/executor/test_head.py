"""The output head in chunks equals the plain computation, and keeps no [M,V]."""

from __future__ import annotations

import pytest
import torch

from dare_core.backbones import head
from dare_core.backbones.head import target_logp


def inputs(rows=13, width=6, vocabulary=19, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(rows, width, generator=generator, dtype=dtype)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=dtype)
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def plain(hidden, weight, targets, temperature):
    logs = (hidden @ weight.t() / temperature).log_softmax(dim=-1)
    return logs.gather(1, targets[:, None])[:, 0], -(logs.exp() * logs).sum(dim=-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("tile", [(13, 1), (4, 5), (13, 19), (50, 50)])
def test_values_and_gradients_equal_the_plain_computation(tile, temperature):
    hidden, weight, targets = inputs()
    upstream = torch.linspace(-1, 2, 13, dtype=torch.float64)
    results = []
    for compute in (
        lambda: target_logp(hidden, weight, targets, temperature=temperature, entropy=True, tile=tile)[:2],
        lambda: plain(hidden, weight, targets, temperature),
    ):
        logp, entropy = compute()
        loss = (upstream * logp).sum() + (upstream.flip(0) * entropy**2).sum()
        results.append((logp, entropy, *torch.autograd.grad(loss, (hidden, weight))))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_gradients_pass_the_numerical_check():
    hidden, weight, targets = inputs(rows=5, width=3, vocabulary=4)
    assert torch.autograd.gradcheck(
        lambda h, w: target_logp(h, w, targets, temperature=1.3, entropy=True, tile=(2, 3))[:2], (hidden, weight)
    )


def test_the_gradient_without_entropy_is_that_of_the_log_probability():
    hidden, weight, targets = inputs()
    logp, entropy, correct = target_logp(hidden, weight, targets, tile=(5, 4))
    assert entropy is None
    assert correct is None
    got = torch.autograd.grad(logp.sum(), (hidden, weight))
    want = torch.autograd.grad(plain(hidden, weight, targets, 1.0)[0].sum(), (hidden, weight))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kept_rows", [0, 6, 13])
def test_kept_exponentials_give_the_gradient_that_computing_them_again_gives(kept_rows, monkeypatch):
    hidden, weight, targets = inputs()
    upstream = torch.linspace(-1, 2, 13, dtype=torch.float64)
    monkeypatch.setattr(head, "KEPT", kept_rows * 19)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        logp, _, _ = target_logp(hidden, weight, targets, temperature=0.7, tile=(5, 8))
    assert sum(rows * entries for rows, entries in (s for s in kept[5:] if len(s) == 2)) == kept_rows * 19
    want = torch.autograd.grad((upstream * plain(hidden, weight, targets, 0.7)[0]).sum(), (hidden, weight))
    for _ in range(2):
        got = torch.autograd.grad((upstream * logp).sum(), (hidden, weight), retain_graph=True)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_nothing_of_size_rows_times_vocabulary_is_kept_beyond_a_limit(monkeypatch):
    monkeypatch.setattr(head, "KEPT", 29)
    hidden, weight, targets = inputs(rows=40, width=2, vocabulary=30)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        target_logp(hidden, weight, targets, tile=(8, 9))
    assert kept
    assert max(kept) <= max(hidden.numel(), weight.numel())


def test_a_frozen_head_gets_no_gradient():
    hidden, weight, targets = inputs()
    weight = weight.detach()
    logp, _, _ = target_logp(hidden, weight, targets, tile=(4, 8))
    (got,) = torch.autograd.grad(logp.sum(), (hidden,))
    assert got.shape == hidden.shape


def test_half_precision_heads_give_float32_log_probabilities():
    hidden, weight, targets = inputs(dtype=torch.bfloat16)
    logp, entropy, _ = target_logp(hidden, weight, targets, entropy=True)
    assert logp.dtype == entropy.dtype == torch.float32
    want, _ = plain(hidden.float(), weight.float(), targets, 1.0)
    torch.testing.assert_close(logp, want, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("tile", [(13, 1), (4, 5), (50, 50)])
def test_a_target_is_correct_where_it_is_the_most_probable_token(tile):
    hidden, weight, targets = inputs()
    best = (hidden @ weight.t()).argmax(dim=-1)
    targets = torch.where(torch.arange(len(targets)) % 2 == 0, best, targets)
    correct = target_logp(hidden, weight, targets, entropy=True, tile=tile).correct
    assert torch.equal(correct, targets == best)
