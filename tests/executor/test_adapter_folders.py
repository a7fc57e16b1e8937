"""Published folders and adapters of every family: read as they are, saved back bit for bit, adapted and merged."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.executor.families import CPU
from tests.executor.test_adapter_properties import every_family, make_views

from dare_core.errors import UserError
from dare_core.spec.sections import PeftSection

EDITED = "model.safetensors"


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def scores(adapter):
    with torch.no_grad():
        return adapter.token_logp(make_views(adapter.facts)).logp


def train(adapter):
    """Move everything that trains away from its first value."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in adapter.module.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


@every_family
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("stored", "own"),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)],
    ids=["float32", "widened", "bfloat16"],
)
def test_an_untouched_model_is_saved_with_the_same_files_and_its_folder_stays(tmp_path, family, shards, stored, own):
    source = family.write(tmp_path / "source", shards=shards, dtype=stored)
    before = digests(source)
    adapter = family.load(source, own)
    scores(adapter)
    adapter.save(tmp_path / "copy")
    assert digests(source) == before
    assert digests(tmp_path / "copy") == before
    assert sum(name.endswith(".safetensors") for name in before) >= shards


@every_family
def test_changed_tensors_keep_every_bit_of_their_training_under_the_published_keys(tmp_path, family):
    source = family.write(tmp_path / "source", dtype=torch.bfloat16)
    adapter = family.load(source)
    train(adapter)
    adapter.save(tmp_path / "copy")
    again = family.load(tmp_path / "copy")
    for (name, want), (_, got) in zip(adapter.module.named_parameters(), again.module.named_parameters(), strict=True):
        assert torch.equal(got, want), name
    want, got = load_file(source / EDITED), load_file(tmp_path / "copy" / EDITED)
    assert {key: tensor.shape for key, tensor in got.items()} == {key: tensor.shape for key, tensor in want.items()}


@every_family
def test_missing_extra_and_misshapen_tensors_are_all_named(tmp_path, family):
    source = family.write(tmp_path / "source")
    tensors = load_file(source / EDITED)
    missing, misshapen, *_ = sorted((key for key in tensors if ".1." in key), key=len, reverse=True)
    shape = tuple(tensors[misshapen].shape)
    del tensors[missing]
    tensors[misshapen] = torch.zeros(5)
    tensors[missing.replace(".1.", ".7.")] = torch.zeros(2, 2)
    save_file(tensors, source / EDITED, metadata={"format": "pt"})
    with pytest.raises(UserError) as caught:
        family.load(source)
    assert [problem.message for problem in caught.value.problems] == [
        f"missing tensor {missing}",
        f"extra tensor {missing.replace('.1.', '.7.')}",
        f"tensor {misshapen} has shape (5,); config.json asks for {shape}",
    ]


@every_family
def test_python_files_in_the_folder_are_neither_run_nor_copied(tmp_path, family):
    source = family.write(tmp_path / "source")
    trap = f"open({str(tmp_path / 'ran')!r}, 'w').write('x')\n"
    for name in ("modeling_planted.py", "configuration_planted.py", "tokenization_planted.py", "__init__.py"):
        (source / name).write_text(trap)
    config = json.loads((source / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_planted.M", "AutoConfig": "configuration_planted.C"}
    (source / "config.json").write_text(json.dumps(config))
    settings = json.loads((source / "tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": ["tokenization_planted.T", None]}, "tokenizer_class": "T"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    adapter = family.load(source)
    assert adapter.text.decode(adapter.text.encode_completion("fine")).endswith("fine")
    adapter.save(tmp_path / "copy")
    assert not (tmp_path / "ran").exists()
    assert not list((tmp_path / "copy").glob("*.py"))
    assert json.loads((tmp_path / "copy" / "config.json").read_text()) == config


@every_family
def test_fresh_weights_depend_on_the_seed_and_a_saved_fresh_model_loads_alike(tmp_path, family):
    first, again = family.write(tmp_path / "first", seed=1), family.write(tmp_path / "again", seed=1)
    assert digests(first) == digests(again)
    one, other = load_file(first / EDITED), load_file(family.write(tmp_path / "other", seed=2) / EDITED)
    for key, tensor in one.items():
        constant = bool((tensor == tensor.flatten()[0]).all())
        assert torch.equal(tensor, other[key]) == constant, key
    assert len(one) > 20
    config = json.loads((first / "config.json").read_text())
    section = family.section(config=config, init="random", tokenizer=str(first))
    state = torch.get_rng_state()
    fresh = family.adapter.load(section, device=CPU, dtype=torch.float32, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(scores(fresh), scores(family.load(first)))


@every_family
def test_every_parameter_of_the_module_is_published_once_and_entirely(tmp_path, family):
    adapter = family.load(family.write(tmp_path / "model"))
    counts = {name: torch.zeros(tensor.shape) for name, tensor in adapter.module.named_parameters()}
    for parts in adapter.weight_layout(adapter.published_config).values():
        for part in parts:
            if part.parameter in counts:
                counts[part.parameter][part.index or ...] += 1
    assert all(bool((count == 1).all()) for count in counts.values())


@every_family
def test_a_new_adapter_changes_nothing_and_a_trained_one_comes_off_merges_and_loads_again(tmp_path, family):
    source = family.write(tmp_path / "source", **family.spread)
    base = scores(family.load(source))
    options = {"r": 4, "alpha": 8}
    adapter = family.load(source)
    adapter.attach_peft(PeftSection(**options))
    torch.testing.assert_close(scores(adapter), base, rtol=1e-5, atol=1e-5)
    train(adapter)
    trained = scores(adapter)
    assert not torch.allclose(trained, base, atol=1e-2)
    with adapter.base_only():
        assert torch.equal(scores(adapter), base)
    adapter.save_adapter(tmp_path / "adapter")
    again = family.load(source, seed=9)
    again.attach_peft(PeftSection(**options, adapter=str(tmp_path / "adapter")))
    assert torch.equal(scores(again), trained)
    adapter.save(tmp_path / "merged")
    torch.testing.assert_close(scores(family.load(tmp_path / "merged")), trained, rtol=1e-4, atol=1e-4)
    want, got = load_file(source / EDITED), load_file(tmp_path / "merged" / EDITED)
    assert got.keys() == want.keys()


@every_family
def test_target_groups_find_modules_and_never_the_head_or_the_embedding(tmp_path, family):
    source = family.write(tmp_path / "source")
    assert "default" in family.adapter.lora_targets
    for group in family.adapter.lora_targets:
        adapter = family.load(source)
        adapter.attach_peft(PeftSection(r=2, alpha=2, targets=group))
        touched = {name.split(".lora_")[0] for name, p in adapter.module.named_parameters() if p.requires_grad}
        layers = range(adapter.module.config.num_hidden_layers)
        has = [any(f".layers.{layer}." in name for name in touched) for layer in layers]
        # Mixtures may have dense layers, without experts, and layers without an MLP.
        assert all(has) if group in ("default", "attention") else any(has), group
        assert not [name for name in touched if "lm_head" in name or "embed" in name]


@every_family
def test_wrap_units_are_the_repeated_layers(tmp_path, family):
    adapter = family.load(family.write(tmp_path / "source"))
    found = [type(part).__name__ for part in adapter.module.modules() if type(part).__name__ in adapter.wrap_units]
    assert len(found) == adapter.module.config.num_hidden_layers
