"""The LLaDA adapter as a whole: padding, packing, dtypes, fresh weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dare_core.errors import UserError
from dare_core.types import AttentionLayout, Views
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import tiny_config, write_llada_checkpoint, write_llada_tokenizer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_llada_checkpoint(tmp_path_factory.mktemp("llada") / "model", init_std=0.2, n_kv_heads=2)


def load(folder, dtype=torch.float32):
    return LladaAdapter.load(LladaSection(path=str(folder)), device=CPU, dtype=dtype)


def make_views(lengths=(9, 5, 9), width=11, seed=0, temperature=1.0):
    """Rows of given lengths at random offsets, half of their tokens masked."""
    generator = torch.Generator().manual_seed(seed)
    count = len(lengths)
    clean = torch.randint(0, 256, (count, width), generator=generator)
    valid = torch.zeros(count, width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        start = int(torch.randint(0, width - length + 1, (1,), generator=generator))
        valid[row, start : start + length] = True
    scored = valid & (torch.rand(count, width, generator=generator) < 0.5)
    return Views(
        inputs=torch.where(scored, 258, clean),
        targets=clean,
        valid=valid,
        scored=scored,
        weight=scored.float(),
        row=torch.arange(count),
        draw=torch.zeros(count, dtype=torch.int64),
        prompt_length=torch.full((count,), 1),
        layout=AttentionLayout(),
        temperature=temperature,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_are_the_log_probabilities_and_entropies_of_the_logits(folder, temperature):
    adapter, views = load(folder), make_views(temperature=temperature)
    scores = adapter.token_logp(views, entropy=True)
    logits = adapter.logits(
        views.inputs, views.valid, views.scored, layout=views.layout, prompt_length=views.prompt_length
    )
    logs = (logits / temperature).log_softmax(dim=-1)
    want = logs.gather(1, views.targets[views.scored][:, None])[:, 0]
    torch.testing.assert_close(scores.logp[views.scored], want)
    torch.testing.assert_close(scores.entropy[views.scored], -(logs.exp() * logs).sum(dim=-1))
    assert not scores.logp[~views.scored].any()
    assert not scores.entropy[~views.scored].any()


def test_a_row_does_not_depend_on_its_neighbours(folder):
    adapter, views = load(folder), make_views(lengths=(9, 5, 9, 1, 11))
    together = adapter.token_logp(views).logp
    for row in range(len(views)):
        alone = adapter.token_logp(views.take(torch.tensor([row]))).logp[0]
        torch.testing.assert_close(alone, together[row], rtol=1e-6, atol=5e-6)


def test_rows_of_one_shape_do_not_depend_on_their_order_to_the_last_bit(folder):
    adapter, views = load(folder), make_views(lengths=(8, 8, 8, 8))
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(adapter.token_logp(views.take(order)).logp, adapter.token_logp(views).logp[order])


def test_where_padding_stands_changes_nothing(folder):
    adapter, views = load(folder), make_views()
    wide = {
        name: torch.nn.functional.pad(getattr(views, name), (3, 2))
        for name in ("inputs", "targets", "valid", "scored", "weight")
    }
    # Padding tokens are never computed, so any token may stand there.
    wide["inputs"] = torch.where(wide["valid"], wide["inputs"], 77)
    got = adapter.token_logp(replace(views, **wide)).logp
    assert torch.equal(got[:, 3:-2], adapter.token_logp(views).logp)


def test_views_without_a_scored_token_give_zeros_that_can_be_differentiated(folder):
    adapter, views = load(folder), make_views()
    nothing = torch.zeros_like(views.scored)
    scores = adapter.token_logp(replace(views, scored=nothing, weight=nothing.float()))
    assert not scores.logp.any()
    (scores.logp.sum() * 1.0).backward()


def test_the_gradient_equals_the_plain_computation_in_float64(folder):
    adapter, views = load(folder, torch.float64), make_views()
    adapter.head_tile = (3, 50)
    parameters = list(adapter.module.parameters())
    got = torch.autograd.grad((adapter.token_logp(views).logp * views.inputs).sum(), parameters)
    logits = adapter.logits(
        views.inputs, views.valid, views.scored, layout=views.layout, prompt_length=views.prompt_length
    )
    logp = logits.log_softmax(dim=-1).gather(1, views.targets[views.scored][:, None])[:, 0]
    want = torch.autograd.grad((logp * views.inputs[views.scored]).sum(), parameters)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_checkpointed_layers_give_the_same_gradient(folder):
    views, gradients = make_views(), []
    for checkpointed in (False, True):
        adapter = load(folder)
        adapter.module.train()
        if checkpointed:
            adapter.module.activation_checkpointing_enable({"use_reentrant": False})
        adapter.token_logp(views).logp.sum().backward()
        gradients.append([parameter.grad for parameter in adapter.module.parameters()])
    for plain, again in zip(*gradients, strict=True):
        assert torch.equal(plain, again)


def test_bfloat16_runs_and_stays_near_float32(folder):
    views = make_views()
    half, full = (load(folder, dtype).token_logp(views).logp for dtype in (torch.bfloat16, torch.float32))
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=0.05, atol=0.1)


def test_rotation_stays_in_float32_in_half_precision(folder):
    adapter = load(folder, torch.bfloat16)
    rotary = adapter.module.model.rotary_emb
    assert rotary.inv_freq.dtype == torch.float32
    cos, _ = rotary(torch.zeros(1, 3, 8, dtype=torch.bfloat16), torch.tensor([[0, 1, 511]]))
    assert cos.dtype == torch.float32
    assert torch.equal(cos, load(folder).module.model.rotary_emb(torch.zeros(1, 3, 8), torch.tensor([[0, 1, 511]]))[0])


def test_rotation_follows_the_config_where_it_asks_for_the_activation_dtype(tmp_path):
    folder = write_llada_checkpoint(tmp_path / "model", rope_full_precision=False)
    cos, _ = load(folder, torch.bfloat16).module.model.rotary_emb(
        torch.zeros(1, 2, 8, dtype=torch.bfloat16), torch.tensor([[0, 1]])
    )
    assert cos.dtype == torch.bfloat16


def fresh(tmp_path, seed, **sizes):
    write_llada_tokenizer(tmp_path)
    section = LladaSection(config=tiny_config(**sizes), init="random", tokenizer=str(tmp_path))
    return LladaAdapter.load(section, device=CPU, dtype=torch.float32, seed=seed)


def test_fresh_weights_depend_on_the_seed_and_on_nothing_else(tmp_path):
    state = torch.get_rng_state()
    first, again, other = fresh(tmp_path, 1), fresh(tmp_path, 1), fresh(tmp_path, 2)
    assert torch.equal(torch.get_rng_state(), state)
    for (name, one), (_, two), (_, three) in zip(first.published(), again.published(), other.published(), strict=True):
        assert torch.equal(one, two), name
        assert torch.equal(one, three) == ("norm" in name or "ln_f" in name)


def test_fresh_matrices_are_normal_with_the_published_spread(tmp_path):
    adapter = fresh(tmp_path, 0, d_model=128, mlp_hidden_size=256)
    values = torch.cat([tensor.flatten() for _, tensor in adapter.published() if tensor.dim() == 2])
    assert abs(float(values.mean())) < 2e-4
    assert abs(float(values.std()) / 0.02 - 1) < 0.01
    assert abs(float((values.abs() < 0.02).float().mean()) - 0.6827) < 0.01


def test_a_fresh_model_is_saved_as_a_folder_that_loads_alike(tmp_path):
    adapter = fresh(tmp_path / "tokenizer", 3)
    adapter.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.facts == adapter.facts
    views = make_views()
    assert torch.equal(again.token_logp(views).logp, adapter.token_logp(views).logp)


def test_a_folder_without_tokenizer_scores_tokens_and_refuses_text(tmp_path):
    folder = write_llada_checkpoint(tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    adapter = load(folder)
    assert adapter.token_logp(make_views()).logp.any()
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        adapter.text.decode([1])
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        LladaAdapter.load_text(LladaSection(path=str(folder)))


def test_the_codec_loads_without_weights(folder, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert LladaAdapter.load_text(LladaSection(path=str(tmp_path))).encode_completion("a")[-1] == 261


def test_an_unsupported_config_is_reported_with_its_file(tmp_path):
    folder = write_llada_checkpoint(tmp_path / "model")
    (folder / "config.json").write_text((folder / "config.json").read_text().replace('"llama"', '"sequential"', 1))
    with pytest.raises(UserError, match=r"config\.json: model: block_type='sequential' is not supported"):
        load(folder)


def test_the_description_names_what_was_used(folder):
    described = load(folder).describe()
    assert described["mask_id"] == 258
    assert described["eos_ids"] == [257, 261]
    assert described["parameters"] == described["trainable_parameters"]
    assert described["dtype"] == "float32"


def test_the_released_8b_checkpoint_fits_tensor_by_tensor_and_byte_by_byte():
    config = tiny_config(
        vocab_size=126464, d_model=4096, n_layers=32, n_heads=32, mlp_hidden_size=12288, max_sequence_length=4096
    )
    with torch.device("meta"):
        module = LladaAdapter.build_module(config).to(torch.bfloat16)
    layout = LladaAdapter.weight_layout(config)
    parameters = dict(module.named_parameters())
    assert len(layout) == len(parameters) == 291
    assert sum(parameters[part.parameter].nbytes for parts in layout.values() for part in parts) == 16_031_162_368
