"""Low-rank adapters: what they touch, that they come off, come back and merge."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.executor.test_llada_model import make_views

from dare_core.errors import UserError
from dare_core.spec.sections import PeftSection
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import write_llada_checkpoint

CPU = torch.device("cpu")
KINDS = ("lora", "dora", "rslora")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_llada_checkpoint(tmp_path_factory.mktemp("llada") / "model", init_std=0.2)


def load(folder, peft=None, seed=0, dtype=torch.float32):
    adapter = LladaAdapter.load(LladaSection(path=str(folder)), device=CPU, dtype=dtype, seed=seed)
    if peft is not None:
        adapter.attach_peft(peft)
    return adapter


def small(**options):
    return PeftSection(**({"r": 4, "alpha": 8} | options))


def train(adapter):
    """Move every adapter parameter away from its first value."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in adapter.module.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def scores(adapter):
    with torch.no_grad():
        return adapter.token_logp(make_views()).logp


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_adapter_changes_nothing_and_a_trained_one_comes_off(folder, kind):
    base = scores(load(folder))
    adapter = load(folder, small(kind=kind))
    torch.testing.assert_close(scores(adapter), base, rtol=1e-5, atol=1e-5)
    train(adapter)
    assert not torch.allclose(scores(adapter), base, atol=1e-2)
    with adapter.base_only():
        assert torch.equal(scores(adapter), base)
    assert not torch.allclose(scores(adapter), base, atol=1e-2)
    assert any(parameter.requires_grad for parameter in adapter.module.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_score_like_the_attached_adapter_and_leave_the_live_module_alone(folder, kind, tmp_path):
    adapter = load(folder, small(kind=kind))
    train(adapter)
    before = {name: parameter.clone() for name, parameter in adapter.module.named_parameters()}
    adapter.save(tmp_path / "merged")
    for name, parameter in adapter.module.named_parameters():
        assert torch.equal(parameter, before[name]), name
    torch.testing.assert_close(scores(load(tmp_path / "merged")), scores(adapter), rtol=1e-5, atol=1e-5)
    want = load_file(folder / "model.safetensors")
    got = load_file(tmp_path / "merged" / "model.safetensors")
    assert got.keys() == want.keys()
    changed = {key for key in want if not torch.equal(got[key], want[key])}
    assert changed == {key for key in want if ".blocks." in key and "norm" not in key}


def test_published_weights_are_the_base_while_the_adapter_is_off(folder):
    adapter = load(folder, small())
    train(adapter)
    with adapter.base_only():
        off = dict(adapter.published())
    assert all(torch.equal(off[key], tensor) for key, tensor in load(folder).published())


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_adapter_loads_again_to_the_bit(folder, kind, tmp_path):
    adapter = load(folder, small(kind=kind))
    train(adapter)
    adapter.save_adapter(tmp_path / "adapter")
    again = load(folder, small(kind=kind, adapter=str(tmp_path / "adapter")), seed=5)
    assert torch.equal(scores(again), scores(adapter))
    again.save_adapter(tmp_path / "again")
    for path in (tmp_path / "adapter").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_peft_itself_reads_a_saved_adapter(folder, tmp_path):
    from peft import PeftModel

    adapter = load(folder, small())
    train(adapter)
    adapter.save_adapter(tmp_path / "adapter")
    plain = load(folder)
    PeftModel.from_pretrained(plain.module, str(tmp_path / "adapter"))
    torch.testing.assert_close(scores(plain), scores(adapter))


def test_the_default_group_adapts_the_seven_matrices_of_each_block_and_never_the_head(folder):
    adapter = load(folder, small())
    touched = {name.split(".lora_")[0] for name, p in adapter.module.named_parameters() if p.requires_grad}
    assert len(touched) == 14
    assert {name.rpartition(".")[2] for name in touched} == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }


def test_published_module_names_are_understood_and_ff_out_is_that_of_the_blocks(folder):
    adapter = load(folder, small(targets=("attn_out", "ff_out", "ff_proj")))
    touched = {name.split(".lora_")[0] for name, p in adapter.module.named_parameters() if p.requires_grad}
    assert {name.rpartition(".")[2] for name in touched} == {"o_proj", "down_proj", "gate_proj"}
    assert len(touched) == 6


def test_unknown_targets_and_the_head_are_refused(folder):
    with pytest.raises(UserError, match="unknown target group 'all'; this family has attention, default, mlp"):
        load(folder, small(targets="all"))
    with pytest.raises(UserError, match=r"'q_prj' matches no linear module.*modules: .*q_proj"):
        load(folder, small(targets=("q_prj", "k_proj")))
    with pytest.raises(UserError, match="'lm_head' is the output head"):
        load(folder, small(targets=("q_proj", "lm_head")))


def test_first_values_depend_on_the_seed_and_leave_the_global_generator_alone(folder):
    state = torch.get_rng_state()
    first, again, other = (
        [p for n, p in load(folder, small(), seed=seed).module.named_parameters() if ".lora_A." in n]
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    for one, two, three in zip(first, again, other, strict=True):
        assert torch.equal(one, two)
        assert not torch.equal(one, three)
        assert float(one.detach().abs().max()) <= one.shape[1] ** -0.5


def test_a_mismatching_adapter_is_refused_by_every_difference(folder, tmp_path):
    load(folder, small()).save_adapter(tmp_path / "adapter")
    with pytest.raises(UserError) as caught:
        load(folder, PeftSection(kind="dora", r=8, alpha=16, targets="mlp", adapter=str(tmp_path / "adapter")))
    assert [problem.path for problem in caught.value.problems] == ["peft.kind", "peft.r", "peft.alpha", "peft.targets"]


def test_adapter_tensors_that_do_not_fit_are_named(folder, tmp_path):
    target = tmp_path / "adapter"
    load(folder, small()).save_adapter(target)
    tensors = load_file(target / "adapter_model.safetensors")
    names = sorted(tensors)
    del tensors[names[0]]
    tensors[names[1]] = torch.zeros(1, 1)
    tensors["stray"] = torch.zeros(1)
    save_file(tensors, target / "adapter_model.safetensors")
    with pytest.raises(UserError) as caught:
        load(folder, small(adapter=str(target)))
    text = str(caught.value)
    assert f"missing tensor {names[0]}" in text
    assert "extra tensor stray" in text
    assert f"tensor {names[1]} has shape (1, 1)" in text


def test_a_folder_without_adapter_files_is_named(folder, tmp_path):
    with pytest.raises(UserError, match=r"no adapter_config\.json and no adapter_model\.safetensors"):
        load(folder, small(adapter=str(tmp_path)))


def test_the_saved_config_is_peft_s_own(folder, tmp_path):
    load(folder, small(kind="rslora")).save_adapter(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["use_rslora"]) == ("LORA", 4, 8, True)
    assert config["target_modules"] == sorted(LladaAdapter.lora_targets["default"])
    assert config["base_model_name_or_path"] == str(folder)


def test_without_adapters_there_is_no_base_to_fall_back_to_and_nothing_to_save(folder, tmp_path):
    adapter = load(folder)
    with pytest.raises(UserError, match="no peft adapters are attached"):
        adapter.base_only()
    with pytest.raises(UserError, match="no peft adapters are attached"):
        adapter.save_adapter(tmp_path / "adapter")


def test_adapters_attach_once(folder):
    adapter = load(folder, small())
    with pytest.raises(UserError, match="already attached"):
        adapter.attach_peft(small())


def test_adapters_of_a_bfloat16_base_are_float32_and_train(folder):
    adapter = load(folder, small(), dtype=torch.bfloat16)
    adapter.token_logp(make_views()).logp.sum().backward()
    trained = [p for p in adapter.module.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    assert all(p.grad is not None for p in trained)
