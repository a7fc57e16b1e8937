"""A base of few bits: refused early where it cannot be, and what it keeps and gives up where it can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from tests.executor.families import FAMILIES
from tests.executor.test_adapter_properties import make_views

from dare_core.backbones import adapter as adapters
from dare_core.backbones import quantised
from dare_core.errors import UserError
from dare_core.spec.sections import PeftSection
from dare_core.testing.command import run_dare_here

LLADA = FAMILIES[0]
#: the kernels want widths that are multiples of their tiles
WIDE = {"d_model": 64, "mlp_hidden_size": 128, "init_std": 0.2}
CPU = torch.device("cpu")


def spec(folder: Path, **model: object) -> Path:
    LLADA.write(folder / "model")
    (folder / "rows.jsonl").write_text(json.dumps({"q": "a", "a": "b"}) + "\n", encoding="utf-8")
    content = {
        "dare": 1,
        "run": {"name": "few-bits", "steps": 1},
        "model": {"kind": "llada", "path": "model", "quantise": "nf4", "device": "cpu", **model},
        "data": {"kind": "jsonl", "path": "rows.jsonl", "prompt": "{q}", "completion": "{a}"},
        "algorithm": {"kind": "sft"},
        "optim": {"batch_size": 1},
        "peft": {"r": 2, "alpha": 4},
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder / "spec.yaml"


def test_without_the_package_validation_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr("dare_core.spec.checks.find_spec", lambda name: None)
    spec(tmp_path)
    result = run_dare_here("validate", "spec.yaml", folder=tmp_path)
    assert result.code == 2
    assert "model.quantise: needs the Python package 'bitsandbytes'" in result.stderr
    assert "pip install 'dare-core[quantised]'" in result.stderr


def test_without_adapters_there_is_nothing_to_train(tmp_path, monkeypatch):
    monkeypatch.setattr("dare_core.spec.checks.find_spec", lambda name: object())
    path = spec(tmp_path)
    path.write_text(path.read_text().replace("peft:\n  alpha: 4\n  r: 2\n", "peft: null\n"), encoding="utf-8")
    result = run_dare_here("validate", "spec.yaml", folder=tmp_path)
    assert result.code == 2
    assert "a quantised base cannot be trained itself" in result.stderr


def test_without_a_gpu_loading_stops_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(quantised, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        LLADA.load(tmp_path / "no-such-folder", quantise="int8")
    assert "needs the Python package 'bitsandbytes'" in str(caught.value)
    assert "needs an NVIDIA GPU, and the model goes to 'cpu'" in str(caught.value)


def quantised_adapter(folder: Path, kind: str, monkeypatch) -> adapters.TransformerAdapter:
    """On the CPU, where the package computes too, only slowly."""
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(adapters, "require_quantiser", lambda device: None)
    return LLADA.load(LLADA.write(folder / kind, **WIDE), quantise=kind)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_the_body_is_quantised_and_the_rest_is_not(tmp_path, monkeypatch, kind):
    adapter = quantised_adapter(tmp_path, kind, monkeypatch)
    plain = LLADA.load(tmp_path / kind)
    layer = adapter.module.model.layers[0]
    assert not layer.mlp.up_proj.weight.is_floating_point()
    assert adapter.module.lm_head.weight.dtype == layer.input_layernorm.weight.dtype == torch.float32
    assert adapter.describe()["quantised"] == kind
    with torch.no_grad():
        views = make_views(plain.facts)
        gap = (adapter.token_logp(views).logp - plain.token_logp(views).logp).abs().max()
    assert 0 < gap < 3


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_adapters_train_above_it_and_are_saved_alone(tmp_path, monkeypatch, kind):
    adapter = quantised_adapter(tmp_path, kind, monkeypatch)
    adapter.attach_peft(PeftSection(r=2, alpha=4))
    trained = {name: p for name, p in adapter.module.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained)
    adapter.module.train()
    adapter.token_logp(make_views(adapter.facts)).logp.sum().backward()
    assert all(bool(p.grad.any()) for name, p in trained.items() if "lora_B" in name)
    adapter.save_adapter(tmp_path / "adapter")
    assert (tmp_path / "adapter/adapter_model.safetensors").is_file()
    with pytest.raises(UserError, match="save the adapter"):
        adapter.save(tmp_path / "saved")
    with pytest.raises(UserError, match="are not the published ones"):
        next(adapter.published())
    assert not (tmp_path / "saved").exists()
