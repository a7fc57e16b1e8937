"""Two-copy layouts of block diffusion, and the shift and guidance of Dream-style models, as the product packs them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dare_core.backbones.attention import SegmentPlan
from dare_core.backbones.packing import pack_noisy_clean, pack_rows
from dare_core.diffusion.canvas import blank_canvas
from dare_core.diffusion.layouts import block_index, positions
from dare_core.diffusion.loop import Loop
from dare_core.diffusion.recording import Recorder
from dare_core.diffusion.rules import find_rule
from dare_core.testing.goldens import GoldenCase
from dare_core.types import AttentionLayout, DecodingSettings, ModelFacts
from tests.goldens.runner import golden


def dense(plan: SegmentPlan) -> Tensor:
    """[T,T] bool visibility of a plan, rows are queries."""
    seen = torch.zeros(plan.length, plan.length, dtype=torch.bool)
    for group in plan.groups:
        assert group.mask is not None
        for index, mask in zip(group.index, group.mask[:, 0], strict=True):
            seen[index[:, None], index] = mask
    return seen


def two_copies(valid: Tensor, prompt_length: Tensor, layout: AttentionLayout) -> tuple[Tensor, list[Tensor], Tensor]:
    """Visibility [T,T] and positions [T] of the packed row, and each row's places in it, noisy before clean.

    The product leaves out clean blocks that nothing scored sees. Scored tokens behind the end keep all of them.
    """
    size = int(layout.block_length or 0)
    wide = torch.cat([valid, valid.new_ones(len(valid), size)], dim=1)
    tokens = torch.zeros(wide.shape, dtype=torch.int64)
    packed = pack_noisy_clean(tokens, tokens, wide, wide, layout, prompt_length)
    assert isinstance(packed.plan, SegmentPlan)
    blocks = block_index(wide, prompt_length, layout)
    clean = ((blocks >= 0) & (blocks < blocks.amax(dim=1, keepdim=True))).sum(dim=1).tolist()
    places, start = [], 0
    for length, kept in zip(valid.sum(dim=1).tolist(), clean, strict=True):
        first = torch.arange(start, start + length)
        places.append(torch.cat([first, first + length + size]))
        start += length + size + kept
    return dense(packed.plan), places, packed.positions


def per_row(valid: Tensor, prompt_length: Tensor, layout: AttentionLayout, width: int, *, compact: bool) -> Tensor:
    """[B,2*width,2*width] visibility, False at padding; rows moved to the left, or where they stood."""
    seen, places, _ = two_copies(valid, prompt_length, layout)
    full = torch.zeros(len(valid), 2 * width, 2 * width, dtype=torch.bool)
    for row, place in enumerate(places):
        columns = torch.arange(len(place) // 2) if compact else valid[row].nonzero()[:, 0]
        at = torch.cat([columns, columns + width])
        full[row, at[:, None], at] = seen[place[:, None], place]
    return full


@golden("algos-elbo", "mask", "Block-diffusion training mask")
def training_mask(case: GoldenCase) -> None:
    for length, size in case.tensors["in.cases"].tolist():
        valid = torch.ones(1, length, dtype=torch.bool)
        got = per_row(valid, torch.tensor([0]), AttentionLayout("block", size), length, compact=True)[0]
        case.close(f"out.mask.n{length}.b{size}", got)


@golden("algos-elbo", "mask", "SDAR packed layout")
def packed_mask(case: GoldenCase) -> None:
    lengths = case.tensors["in.lengths"]
    valid = torch.arange(int(lengths.max())) < lengths[:, None]
    layout = AttentionLayout("block", int(case.settings["block"]))
    seen, places, position = two_copies(valid, lengths * 0, layout)
    place = torch.cat(places)
    case.close("out.mask", seen[place[:, None], place])
    case.close("out.position_ids", position[place])
    noisy = [torch.arange(2 * length) < length for length in lengths.tolist()]
    case.close("out.is_noisy", torch.cat(noisy))


@golden("algos-elbo", "mask", "DARE LLaDA2 SFT mask")
def padded_mask(case: GoldenCase) -> None:
    valid = case.tensors["in.attention_mask"].bool()
    layout = AttentionLayout("block", int(case.settings["block"]))
    got = per_row(valid, torch.zeros(len(valid), dtype=torch.int64), layout, valid.shape[1], compact=False)
    case.close("out.visible", got[:, None])


def compacted(rows: Tensor, valid: Tensor, fill: Any = 0) -> Tensor:
    """[B,C] valid entries moved to the left, as they stand in the packed row."""
    return pad_sequence(list(rows[valid].split(valid.sum(dim=1).tolist())), batch_first=True, padding_value=fill)


def response_positions(valid: Tensor, prompt_columns: int) -> Tensor:
    columns = torch.arange(valid.shape[1]).expand(valid.shape) - prompt_columns
    return compacted(columns.clamp(min=-1), valid, -1)


@golden("algos-elbo", "mask", "RL view of block diffusion")
def compaction(case: GoldenCase) -> None:
    given, section = case.tensors, int(case.settings["prompt_section"])
    valid = given["in.attention_mask"].bool()
    prompt = valid[:, :section].sum(dim=1)
    for name in ("noisy", "clean"):
        case.close(f"out.{name}", compacted(given[f"in.{name}"], valid, case.settings["pad_id"]))
    case.close("out.target", compacted(given["in.target"], valid, False))
    case.close("out.valid", compacted(valid, valid, False))
    case.close("out.position_ids", compacted(positions(valid), valid))
    case.close("out.response_positions", response_positions(valid, section))
    width = int(valid.sum(dim=1).max())
    for origin in ("global", "response"):
        layout = AttentionLayout("block", int(case.settings["block"]), origin)
        case.close(f"out.block_ids.{origin}", compacted(block_index(valid, prompt, layout), valid, -1))
        case.close(f"out.mask.{origin}", per_row(valid, prompt, layout, width, compact=True))
    packed = pack_noisy_clean(given["in.noisy"], given["in.clean"], valid, given["in.target"], layout, prompt)
    assert torch.equal(packed.tokens[packed.read], given["in.noisy"][given["in.target"]])
    assert torch.equal(packed.positions[packed.read], positions(valid)[given["in.target"]])


@golden("algos-grpo", "mask", "Visibility of the doubled sequence")
def doubled(case: GoldenCase) -> None:
    valid = case.tensors["in.attention_mask"].bool()
    prompt = torch.tensor(case.settings["prompt_lengths"])
    section = valid.shape[1] - max(case.settings["response_lengths"])
    case.close("out.compact_clean", compacted(case.tensors["in.clean_ids"], valid))
    case.close("out.response_positions", response_positions(valid, section))
    width = int(valid.sum(dim=1).max())
    for origin in ("global", "response"):
        layout = AttentionLayout("block", int(case.settings["block_size"]), origin)
        case.close(f"out.visible_{origin}", per_row(valid, prompt, layout, width, compact=True))


@golden("algos-grpo", "logp", "Logit shift for Dream-style models")
def shift_and_guidance(case: GoldenCase) -> None:
    """The product shifts within each sample; the published shift over the packed axis is compared as it is."""
    given, raw = case.tensors, case.tensors["in.logits"]
    case.close("out.shifted", torch.cat([raw[:, :1], raw[:, :-1]], dim=1))
    lengths = given["in.cu_seqlens"].diff().tolist()
    rows = pad_sequence(list(given["in.packed_ids"][0].split(lengths)), batch_first=True)
    valid = torch.arange(rows.shape[1]) < torch.tensor(lengths)[:, None]
    packed = pack_rows(rows, valid, valid, AttentionLayout(), torch.tensor(case.settings["prompt_lens"]), shift=1)
    first = given["in.cu_seqlens"][:-1]
    inner = torch.ones(raw.shape[1], dtype=torch.bool).index_fill(0, first[1:], False)
    case.close("out.shifted", raw[:, packed.read], where=inner[None, :, None])
    assert torch.equal(packed.read[first], first)
    guided(case, rows, valid, lengths)


class _Scripted:
    """Gives the stored logits of the rows as they are, then of those with a hidden prompt."""

    def __init__(self, case: GoldenCase, facts: ModelFacts) -> None:
        self.case, self.facts, self.seen = case, facts, torch.empty(0)

    def logits(self, tokens: Tensor, valid: Tensor, where: Tensor, **_: Any) -> Tensor:
        seeing, blind = tokens.chunk(2)
        half = valid[: len(seeing)]
        assert torch.equal(seeing[half], self.case.tensors["in.packed_ids"][0])
        self.seen = blind[half]
        scored = where[: len(seeing)][half]
        return torch.cat([self.case.tensors[name][0, scored] for name in ("in.logits", "in.logits_uncond")])


def guided(case: GoldenCase, rows: Tensor, valid: Tensor, lengths: list[int]) -> None:
    prompts = [row[:length].tolist() for row, length in zip(rows, case.settings["prompt_lens"], strict=True)]
    new = lengths[0] - len(prompts[0])
    settings = DecodingSettings(
        new_tokens=new, block_length=new, steps_per_block=new, guidance=float(case.settings["cfg_scale"])
    )
    facts = ModelFacts("probe", "masked", 100, mask_id=99, eos_ids=(98,), pad_id=0, max_positions=64)
    canvas = blank_canvas(prompts, torch.arange(len(rows)), facts, settings, facts.layout, torch.device("cpu"))
    canvas.tokens[valid] = rows[valid]
    model = _Scripted(case, facts)
    rule, recorder = find_rule(settings.selection), Recorder(snapshots=False, edits=False)
    loop = Loop(model, settings, rule, "exact", facts.layout, canvas, recorder, None)  # type: ignore[arg-type]
    scored, logits = loop.score(torch.arange(len(rows)))
    case.close("out.uncond_input", model.seen[None])
    got = torch.zeros_like(case.tensors["out.cfg"])
    got[0, scored[valid]] = logits
    case.close("out.cfg", got, where=scored[valid][None, :, None])
