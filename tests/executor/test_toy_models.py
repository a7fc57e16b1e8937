"""The toys keep what the adapter interface promises, so that tests built on them mean something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.executor.decoding import single_row

from dare_core.diffusion.layouts import block_index, visible
from dare_core.errors import UserError
from dare_core.spec.sections import PeftSection
from dare_core.testing.enumeration import views_of_sets
from dare_core.testing.toy_config import ToyBlockSection, ToyMaskedSection
from dare_core.testing.toy_models import ToyBlock, ToyMasked
from dare_core.types import AttentionLayout, Prompt, Views

TOYS = [ToyMasked(6, 10, 1), ToyBlock(6, 10, 1, block_length=3)]
ROW = single_row([0, 1, 2, 3, 1, 0, 2], prompt=2, pad_id=4)
SETS = torch.tensor([[True, False, True, True, False], [True, True, True, True, True]])
CPU = torch.device("cpu")


@pytest.mark.parametrize("toy", TOYS)
def test_padding_anywhere_changes_nothing(toy: ToyMasked) -> None:
    views = views_of_sets(toy, ROW, 0, SETS)
    plain = toy.token_logp(views, entropy=True)
    where = torch.tensor([1, 2, 4, 5, 6, 8, 9])

    def moved(values: torch.Tensor, fill: int) -> torch.Tensor:
        return torch.full((2, 12), fill, dtype=values.dtype).index_copy(1, where, values)

    padded = replace(
        views,
        inputs=moved(views.inputs, 3),
        targets=moved(views.targets, 3),
        valid=moved(views.valid, 0),
        scored=moved(views.scored, 0),
        weight=moved(views.weight, 0),
    )
    scores = toy.token_logp(padded, entropy=True)
    torch.testing.assert_close(scores.logp[:, where], plain.logp)
    torch.testing.assert_close(scores.entropy[:, where], plain.entropy)
    assert scores.logp.count_nonzero() == views.scored.sum()


@pytest.mark.parametrize("toy", TOYS)
def test_token_logp_is_the_softmax_of_logits(toy: ToyMasked) -> None:
    views = views_of_sets(toy, ROW, 0, SETS[1:], temperature=0.7)
    if toy.facts.diffusion == "block":
        # Only in the first block are the earlier blocks as clean on the canvas as in the view.
        views = replace(views, inputs=views.targets.where(torch.arange(7) < 3, views.inputs))
        views = replace(views, scored=views.scored & (torch.arange(7) < 6) & (torch.arange(7) >= 3))
    logits = toy.logits(
        views.inputs, views.valid, views.scored, layout=toy.facts.layout, prompt_length=views.prompt_length
    )
    wanted = (logits / 0.7).log_softmax(dim=1).gather(1, views.targets[views.scored][:, None])[:, 0]
    torch.testing.assert_close(toy.token_logp(views).logp[views.scored], wanted)


def test_mask_is_never_predicted_and_the_rest_sums_to_one() -> None:
    toy = TOYS[0]
    views = views_of_sets(toy, ROW, 0, SETS[1:])
    logits = toy.logits(
        views.inputs, views.valid, views.scored, layout=AttentionLayout(), prompt_length=views.prompt_length
    )
    probability = logits.softmax(dim=1)
    assert (probability[:, toy.facts.mask_id] == 0).all()
    torch.testing.assert_close(probability.sum(dim=1), torch.ones(5, dtype=torch.float64))


def test_block_toy_ignores_later_blocks_and_sees_earlier_ones_clean() -> None:
    toy = ToyBlock(6, 10, 1, block_length=3)
    views = views_of_sets(toy, ROW, 0, SETS[1:])
    base = toy.token_logp(views).logp[0]

    def changed(**tensors: torch.Tensor) -> torch.Tensor:
        return (toy.token_logp(replace(views, **tensors)).logp[0] - base).abs() > 1e-9

    noisy_input = views.inputs.clone()
    noisy_input[0, 2] = 0  # unmasked in the noisy copy of block 0
    assert changed(inputs=noisy_input).nonzero()[:, 0].tolist() == [2], "only its own block sees the noisy token"
    clean_target = views.targets.clone()
    clean_target[0, 4] = 3
    assert changed(targets=clean_target).nonzero()[:, 0].tolist() == [4, 6], "itself as target, and later blocks"


def test_context_and_prompt_move_the_scores() -> None:
    toy = TOYS[0]
    views = views_of_sets(toy, ROW, 0, SETS)
    prompt = views.inputs.clone()
    prompt[:, 0] = 3
    change = toy.token_logp(replace(views, inputs=prompt)).logp - toy.token_logp(views).logp
    assert (change[views.scored].abs() > 1e-6).all()


def test_gradients_reach_both_tables() -> None:
    toy = ToyMasked(5, 8, 2)
    toy.token_logp(views_of_sets(toy, ROW_OF_FIVE, 0, torch.ones(1, 3, dtype=torch.bool))).logp.sum().backward()
    assert toy.module.bias.grad.abs().sum() > 0
    assert toy.module.table.grad.isfinite().all()
    assert toy.module.table.grad.abs().sum() > 0


ROW_OF_FIVE = single_row([0, 1, 2, 1, 0], prompt=2)


def test_a_folder_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    for toy, section in ((TOYS[0], ToyMaskedSection), (TOYS[1], ToyBlockSection)):
        folder = tmp_path / toy.facts.kind
        toy.save(folder)
        again = type(toy).load(section(path=str(folder)), device=CPU, dtype=torch.float32)
        assert again.facts == toy.facts
        for name, value in toy.module.state_dict().items():
            assert torch.equal(again.module.state_dict()[name], value)
        assert type(toy).load_text(section(path=str(folder))).encode_completion("ab") == [0, 1, 4]


def test_adapters_start_at_the_base_and_can_be_switched_off(tmp_path: Path) -> None:
    toy = ToyMasked(6, 10, 1)
    views = views_of_sets(toy, ROW, 0, SETS)
    base = toy.token_logp(views).logp.detach()
    toy.attach_peft(PeftSection(r=2, alpha=4))
    assert torch.equal(toy.token_logp(views).logp, base)
    trained = [name for name, parameter in toy.module.named_parameters() if parameter.requires_grad]
    assert trained == ["low_rank.a", "low_rank.b"]
    with torch.no_grad():
        toy.module.low_rank["b"].add_(torch.linspace(-1, 1, 5, dtype=torch.float64))
    moved = toy.token_logp(views).logp.detach()
    assert not torch.allclose(moved, base)
    with toy.base_only():
        assert torch.equal(toy.token_logp(views).logp, base)
    toy.save_adapter(tmp_path / "adapter")
    toy.save(tmp_path / "merged")
    merged = ToyMasked.load(ToyMaskedSection(path=str(tmp_path / "merged")), device=CPU, dtype=torch.float32)
    torch.testing.assert_close(merged.token_logp(views).logp, moved)
    fresh = ToyMasked(6, 10, 1)
    fresh.attach_peft(PeftSection(r=2, alpha=4, adapter=str(tmp_path / "adapter")))
    torch.testing.assert_close(fresh.token_logp(views).logp, moved)


def test_the_codec_writes_what_it_reads_and_refuses_other_characters() -> None:
    codec = TOYS[0].text
    assert codec.encode_prompt(Prompt(id="p", index=0, text="dab")) == [3, 0, 1]
    assert codec.decode([3, 0, 4, 1, 5]) == "dab"
    with pytest.raises(UserError, match="'row-7' holds 'xz'"):
        codec.encode_prompt(Prompt(id="row-7", index=0, text="azx"))


def test_blocks_are_counted_over_valid_tokens_from_either_origin() -> None:
    valid = torch.tensor([[False, True, True, True, False, True, True, True]])
    length = torch.tensor([2])
    assert block_index(valid, length, AttentionLayout()).tolist() == [[-1, 0, 0, 0, -1, 0, 0, 0]]
    from_start = block_index(valid, length, AttentionLayout("block", 4))
    assert from_start.tolist() == [[-1, 0, 0, 0, -1, 0, 1, 1]]
    from_response = block_index(valid, length, AttentionLayout("block", 3, "response"))
    assert from_response.tolist() == [[-1, 0, 0, 1, -1, 1, 1, 2]]
    sees = visible(from_start)[0]
    assert sees[3].tolist() == [False, True, True, True, False, True, False, False]
    assert sees[7].tolist() == valid[0].tolist()
    assert not sees[0].any()


def test_a_layout_the_toy_does_not_have_is_refused() -> None:
    views: Views = views_of_sets(TOYS[0], ROW, 0, SETS, layout=AttentionLayout("block", 3))
    with pytest.raises(ValueError, match="toy-masked attends by 'full'"):
        TOYS[0].token_logp(views)
