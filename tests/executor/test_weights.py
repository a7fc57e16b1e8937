"""Published folders: read as they are, never written to, saved back bit for bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dare_core.errors import UserError
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import write_llada_checkpoint

CPU = torch.device("cpu")


def load(folder, dtype=torch.float32, **section):
    return LladaAdapter.load(LladaSection(path=str(folder), **section), device=CPU, dtype=dtype)


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def edit_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(
    ("stored", "own"),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)],
)
def test_an_untouched_model_is_saved_with_the_same_files(tmp_path, shards, stored, own):
    source = write_llada_checkpoint(tmp_path / "source", shards=shards, dtype=stored)
    (source / "generation_config.json").write_text('{"eos_token_id": 257}')
    before = digests(source)
    load(source, own).save(tmp_path / "copy")
    assert digests(source) == before
    assert digests(tmp_path / "copy") == before
    assert sum(name.endswith(".safetensors") for name in before) >= shards


def test_changed_tensors_keep_every_bit_of_their_training(tmp_path):
    source = write_llada_checkpoint(tmp_path / "source", dtype=torch.bfloat16)
    adapter = load(source)
    with torch.no_grad():
        adapter.module.model.norm.weight += 1e-6
    adapter.save(tmp_path / "copy")
    again = load(tmp_path / "copy")
    for (name, want), (_, got) in zip(adapter.module.named_parameters(), again.module.named_parameters(), strict=True):
        assert torch.equal(got, want), name
    assert load_file(tmp_path / "copy" / "model.safetensors").keys() == load_file(source / "model.safetensors").keys()


def test_missing_extra_and_misshapen_tensors_are_all_named(tmp_path):
    source = write_llada_checkpoint(tmp_path / "source")

    def change(tensors):
        del tensors["model.transformer.blocks.1.k_proj.weight"]
        tensors["model.transformer.blocks.7.k_proj.weight"] = torch.zeros(2, 2)
        tensors["model.transformer.ln_f.weight"] = torch.zeros(5)

    edit_weights(source, change)
    with pytest.raises(UserError) as caught:
        load(source)
    messages = [problem.message for problem in caught.value.problems]
    assert messages == [
        "missing tensor model.transformer.blocks.1.k_proj.weight",
        "extra tensor model.transformer.blocks.7.k_proj.weight",
        "tensor model.transformer.ln_f.weight has shape (5,); config.json asks for (32,)",
    ]


def test_a_missing_shard_is_named(tmp_path):
    source = write_llada_checkpoint(tmp_path / "source", shards=3)
    gone = sorted(source.glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(UserError, match=gone.name):
        load(source)


def test_a_broken_shard_is_named(tmp_path):
    source = write_llada_checkpoint(tmp_path / "source")
    (source / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match="not a readable safetensors file"):
        load(source)


def test_pickled_weights_are_refused(tmp_path):
    source = write_llada_checkpoint(tmp_path / "source")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin.*can run code.*convert them to safetensors"):
        load(source)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        load(tmp_path / "nowhere")


def test_python_files_in_the_folder_are_neither_run_nor_copied(tmp_path):
    source = write_llada_checkpoint(tmp_path / "source")
    trap = f"open({str(tmp_path / 'ran')!r}, 'w').write('x')\n"
    for name in ("modeling_llada.py", "configuration_llada.py", "tokenization_llada.py", "__init__.py"):
        (source / name).write_text(trap)
    config = json.loads((source / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_llada.LLaDAModelLM", "AutoConfig": "configuration_llada.LLaDAConfig"}
    (source / "config.json").write_text(json.dumps(config))
    settings = json.loads((source / "tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": ["tokenization_llada.T", None]}, "tokenizer_class": "LladaTokenizer"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    adapter = load(source)
    assert adapter.text.decode(adapter.text.encode_completion("fine")) == "fine"
    adapter.save(tmp_path / "copy")
    assert not (tmp_path / "ran").exists()
    assert not list((tmp_path / "copy").glob("*.py"))
    assert json.loads((tmp_path / "copy" / "config.json").read_text()) == config


def test_saving_into_the_source_is_refused(tmp_path):
    source = write_llada_checkpoint(tmp_path / "source")
    before = digests(source)
    with pytest.raises(UserError, match="cannot save into the folder"):
        load(source).save(source)
    assert digests(source) == before


def test_a_shard_over_the_limit_is_split_and_reads_back(tmp_path):
    source = write_llada_checkpoint(tmp_path / "source")
    adapter = load(source)
    adapter.max_shard_bytes = 40_000
    adapter.save(tmp_path / "copy")
    index = json.loads((tmp_path / "copy" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert all(path.stat().st_size < 45_000 for path in (tmp_path / "copy").glob("*.safetensors"))
    again = dict(load(tmp_path / "copy").published())
    assert all(torch.equal(again[key], tensor) for key, tensor in adapter.published())


def test_the_tied_head_of_a_weight_tying_config_is_one_tensor(tmp_path):
    source = write_llada_checkpoint(tmp_path / "source", weight_tying=True)
    assert "model.transformer.ff_out.weight" not in load_file(source / "model.safetensors")
    adapter = load(source)
    assert adapter.module.lm_head.weight is adapter.module.model.embed_tokens.weight
    adapter.save(tmp_path / "copy")
    assert digests(tmp_path / "copy") == digests(source)
