"""Low-rank adapters of stacked experts: one pair of matrices per expert, off, merged, saved and loaded."""

from __future__ import annotations

import pytest
import torch
from tests.executor.families import FAMILIES
from tests.executor.test_adapter_properties import make_views

from dare_core.errors import UserError
from dare_core.spec.sections import PeftSection

MIXTURES = [family for family in FAMILIES if "experts" in family.adapter.lora_targets]
mixtures = pytest.mark.parametrize("family", MIXTURES, ids=lambda family: family.kind)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        family.kind: family.write(tmp_path_factory.mktemp(family.kind) / "model", **family.spread)
        for family in MIXTURES
    }


def section(**options):
    return PeftSection(**({"r": 2, "alpha": 4, "targets": "experts"} | options))


def trained(family, folder, **options):
    adapter = family.load(folder)
    adapter.attach_peft(section(**options))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in adapter.module.named_parameters():
            if "lora_" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return adapter


def scores(adapter):
    with torch.no_grad():
        return adapter.token_logp(make_views(adapter.facts)).logp


@mixtures
def test_fresh_expert_adapters_change_nothing_and_only_they_train(family, folders):
    adapter = family.load(folders[family.kind])
    before = scores(adapter)
    adapter.attach_peft(section())
    torch.testing.assert_close(scores(adapter), before, rtol=1e-6, atol=1e-6)
    adapter.token_logp(make_views(adapter.facts)).logp.sum().backward()
    moved = [name for name, parameter in adapter.module.named_parameters() if parameter.grad is not None]
    assert moved
    assert all("lora_" in name for name in moved)
    assert all(".experts." in name for name in moved)


@mixtures
def test_expert_adapters_come_off_and_merge_into_published_experts(family, folders, tmp_path):
    plain = family.load(folders[family.kind])
    adapter = trained(family, folders[family.kind])
    with adapter.base_only():
        torch.testing.assert_close(scores(adapter), scores(plain), rtol=1e-6, atol=1e-6)
    adapted = scores(adapter)
    assert (adapted - scores(plain)).abs().max() > 1e-2
    adapter.save(tmp_path / "merged")
    torch.testing.assert_close(scores(family.load(tmp_path / "merged")), adapted, rtol=1e-4, atol=1e-5)
    before, after = dict(plain.published()), dict(adapter.published())
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed == {key for key in before if ".experts." in key}
    assert torch.equal(scores(adapter), adapted)


@mixtures
def test_expert_adapters_are_saved_and_read_back(family, folders, tmp_path):
    adapter = trained(family, folders[family.kind])
    adapter.save_adapter(tmp_path / "adapter")
    again = family.load(folders[family.kind])
    again.attach_peft(section(adapter=str(tmp_path / "adapter")))
    assert torch.equal(scores(again), scores(adapter))
    with pytest.raises(UserError, match=r"peft\.r"):
        family.load(folders[family.kind]).attach_peft(section(r=4, adapter=str(tmp_path / "adapter")))


@mixtures
def test_experts_and_attention_can_be_adapted_together(family, folders):
    names = (*family.adapter.lora_targets["attention"], *family.adapter.lora_targets["experts"])
    adapter = trained(family, folders[family.kind], targets=names)
    adapted = [name for name, _ in adapter.module.named_parameters() if "lora_" in name]
    touched = {part for name in adapted for part in ("self_attn", "experts") if f".{part}." in name}
    assert touched == {"self_attn", "experts"}


def test_a_name_of_both_dense_layers_and_experts_means_the_dense_layers(folders):
    (family,) = [family for family in MIXTURES if family.kind == "llada2"]
    adapter = trained(family, folders["llada2"], targets="mlp")
    touched = {name for name, _ in adapter.module.named_parameters() if "lora_A" in name}
    assert touched
    assert not any(".experts." in name for name in touched)


@mixtures
@pytest.mark.parametrize("options", [{"dropout": 0.1}, {"kind": "dora"}])
def test_dropout_and_dora_of_experts_are_refused(family, folders, options):
    with pytest.raises(UserError, match="neither dropout nor DoRA"):
        family.load(folders[family.kind]).attach_peft(section(**options))


@mixtures
def test_unknown_targets_name_the_experts_too(family, folders):
    with pytest.raises(UserError, match=r"experts\.down_proj.*experts\.gate_up_proj"):
        family.load(folders[family.kind]).attach_peft(section(targets=("expert",)))
