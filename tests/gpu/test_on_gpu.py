"""What only a CUDA device can show. ``make test-gpu`` runs these; elsewhere they are skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dare_core.testing.command import run_dare_here
from dare_core.testing.goldens import find_cases
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import write_llada_checkpoint
from tests.executor.families import FAMILIES
from tests.executor.test_adapter_properties import make_views

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ROOT = Path(__file__).parents[2]
GOLDENS = ROOT / "tests" / "goldens" / "data" / "models" / "llada"
#: the compiled kernels want heads of 16 or more
WIDE_HEADS = {"llada": {"d_model": 64}, "llada-moe": {"hidden_size": 64}, "dream": {"hidden_size": 64}}
SIZES = (
    "rollout.new_tokens=8",
    "rollout.block_length=4",
    "rollout.steps_total=4",
    "optim.batch_size=4",
    "algorithm.group_size=2",
    "algorithm.inner_updates=2",
)


def test_llada_logits_match_the_published_ones():
    section = LladaSection(path=str(GOLDENS / "checkpoint"))
    adapter = LladaAdapter.load(section, device=torch.device("cuda"), dtype=torch.float32)
    case = next(case for case in find_cases(GOLDENS) if case.kind == "logits" and "no padding" in case.topic)
    tokens = case.tensors["input_ids"].cuda()
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    none = torch.zeros(len(tokens), dtype=torch.int64, device="cuda")
    got = adapter.logits(tokens, everywhere, everywhere, layout=adapter.facts.layout, prompt_length=none)
    case.close("logits", got.reshape(*tokens.shape, -1).cpu())


@pytest.mark.parametrize("update", ["direct", "two-pass"])
def test_bfloat16_autocast_trains_by_either_update(tmp_path, update):
    model = write_llada_checkpoint(tmp_path / "model", max_sequence_length=1024)
    changes = (
        f"model.path={model}",
        "model.device=cuda",
        f"run.folder={tmp_path}",
        "run.steps=3",
        "data.limit=40",
        "peft.r=2",
        f"engine.update={update}",
        "engine.autocast=bfloat16",
        *SIZES,
    )
    sets = [word for change in changes for word in ("--set", change)]
    result = run_dare_here("run", str(ROOT / "examples/llada-gsm8k-d1.yaml"), *sets, folder=ROOT)
    assert result.code == 0, result.stderr
    lines = [json.loads(line) for line in (tmp_path / "llada-gsm8k-d1/metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    assert all(line["loss"] is not None and line["optim/skipped"] == 0 for line in lines)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_a_family_scores_the_same_on_both_devices(tmp_path, family):
    folder = family.write(tmp_path)
    adapters = [family.load(folder, device=torch.device(name)) for name in ("cpu", "cuda")]
    tokens = torch.arange(12).reshape(2, 6) + 3
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    prompt = torch.full((2,), 2)
    on_cpu, on_gpu = (
        adapter.logits(tokens, everywhere, everywhere, layout=adapter.facts.layout, prompt_length=prompt).cpu()
        for adapter in adapters
    )
    torch.testing.assert_close(on_cpu, on_gpu, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
@pytest.mark.parametrize(("attention", "dtype"), [("flex", torch.float32), ("flash", torch.bfloat16)])
def test_attention_implementations_score_and_train_alike(family, attention, dtype, tmp_path):
    folder = family.write(tmp_path / "model", **WIDE_HEADS.get(family.kind, {}), **family.spread)
    results = []
    for name in ("sdpa", attention):
        adapter = family.load(folder, dtype, device=torch.device("cuda"), attention=name)
        logp = adapter.token_logp(make_views(adapter.facts)).logp
        logp.sum().backward()
        slopes = torch.cat([p.grad.flatten().float() for p in adapter.module.parameters() if p.grad is not None])
        results.append((logp.detach(), slopes))
    exact = dtype == torch.float32
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-3, atol=1e-3 if exact else 0.2)
    likeness = torch.nn.functional.cosine_similarity(results[0][1], results[1][1], dim=0)
    assert likeness > (0.9999 if exact else 0.97)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_quantised_base_trains_adapters_in_less_memory(tmp_path, kind):
    pytest.importorskip("bitsandbytes")
    model = write_llada_checkpoint(
        tmp_path / "model", d_model=256, mlp_hidden_size=512, max_sequence_length=1024, init_std=0.1
    )
    changes = (
        f"model.path={model}",
        "model.device=cuda",
        f"model.quantise={kind}",
        f"run.folder={tmp_path}",
        "run.steps=3",
        "peft.r=2",
        "optim.batch_size=4",
        "optim.lr=1e-3",
    )
    sets = [word for change in changes for word in ("--set", change)]
    result = run_dare_here("run", str(ROOT / "examples/llada-gsm8k-sft-lora.yaml"), *sets, folder=ROOT)
    assert result.code == 0, result.stderr
    run = next(path for path in tmp_path.iterdir() if (path / "metrics.jsonl").is_file())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line["loss"] is not None and line["optim/grad_norm"] > 0 for line in lines)
    assert next(run.glob("checkpoints/step_3/adapter/adapter_model.safetensors")).is_file()
    packed = LladaAdapter.load(
        LladaSection(path=str(model), quantise=kind), device=torch.device("cuda"), dtype=torch.bfloat16
    )
    plain = LladaAdapter.load(LladaSection(path=str(model)), device=torch.device("cuda"), dtype=torch.bfloat16)
    sizes = [
        sum(p.numel() * p.element_size() for p in adapter.module.model.layers.parameters())
        for adapter in (packed, plain)
    ]
    assert sizes[0] < 0.6 * sizes[1]
