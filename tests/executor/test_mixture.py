"""Rollouts from a mixture of the policy's and the reference policy's logits."""

from __future__ import annotations

import json

import pytest
import torch
from tests.executor.policy_objectives import drifted
from tests.executor.toy_runs import TOYS, metrics_of, online_spec, write_spec

from dare_core.interfaces import LogitMixture, RolloutRequest
from dare_core.rollout.config import NativeSection
from dare_core.rollout.native import NativeBackend
from dare_core.testing.command import run_dare_here
from dare_core.testing.fake_distributions import installed
from dare_core.testing.toy_models import ToyMasked
from dare_core.types import Address, Prompt


def generated(adapter, mixture=None):
    section = NativeSection(new_tokens=4, block_length=2, temperature=1.0)
    prompts = [Prompt(id=text, index=i, text=text) for i, text in enumerate(["ab", "cde"])]
    address = Address(3, "rollout", 0)
    request = RolloutRequest(prompts=prompts, samples=5, settings=section.settings(), address=address, mixture=mixture)
    return NativeBackend(section, adapter).generate(request)


class Switched:
    """While open, the toy has another toy's tables."""

    def __init__(self, adapter, other):
        self.adapter, self.other = adapter, other

    def __enter__(self):
        self.kept = self.adapter.module
        self.adapter.module = self.other.module

    def __exit__(self, *_):
        self.adapter.module = self.kept


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_mixed_logits_are_those_of_the_mixed_tables(share):
    toy = ToyMasked(8, 12, seed=1)
    other = drifted(toy, 0.8)
    bias, table = (
        (1 - share) * mine.detach() + share * theirs.detach()
        for mine, theirs in zip(toy.module.parameters(), other.module.parameters(), strict=True)
    )
    # A toy's logits are linear in its tables.
    wanted = generated(ToyMasked.from_tables(bias, table))
    found = generated(toy, LogitMixture(share=share, other=lambda: Switched(toy, other)))
    assert torch.equal(found.tokens, wanted.tokens)
    torch.testing.assert_close(found.logp, wanted.logp)
    assert torch.equal(found.forwards, 2 * wanted.forwards)


def test_guidance_and_a_mixture_are_refused_together(tmp_path):
    with installed(tmp_path / "site", TOYS):
        for share, code in ((0.0, 0), (0.5, 2)):
            algorithm = {"kind": "wd1", "group_size": 4, "reference_share": share}
            spec = write_spec(tmp_path / str(share), online_spec(algorithm=algorithm, rollout__guidance=1.0))
            result = run_dare_here("validate", spec.name, folder=spec.parent)
            assert result.code == code, result.stderr
            assert ("rollout.guidance: algorithm 'wd1' needs 'mixture'" in result.stderr) == (code == 2)


def test_wd1_samples_from_the_mixture_and_counts_both_policies(tmp_path):
    with installed(tmp_path / "site", TOYS):
        spent = {}
        for share in (0.0, 0.5):
            algorithm = {"kind": "wd1", "group_size": 4, "inner_updates": 1, "reference_share": share}
            folder = tmp_path / str(share)
            write_spec(folder, online_spec(run__steps=2, algorithm=algorithm))
            result = run_dare_here("run", "spec.yaml", folder=folder)
            assert result.code == 0, result.stderr
            metrics = metrics_of(folder / "runs/toy")
            assert ("rollout/logp_gap_mean" in metrics[0]) == (share == 0)
            spent[share] = metrics[0]["rollout/forwards"]
            assert json.loads((folder / "runs/toy/ledger.json").read_text())["forwards"] > 0
        # Before the first update both policies are one, so only the cost differs.
        assert spent[0.5] == 2 * spent[0.0]
