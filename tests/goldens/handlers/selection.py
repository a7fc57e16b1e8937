"""Selection rules alone, on recorded confidences."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_core.diffusion.confidence import token_confidence
from dare_core.diffusion.rules import find_rule
from dare_core.diffusion.selection import select
from dare_core.testing.goldens import GoldenCase
from dare_core.types import SelectionRule
from dare_fastdllm.credit import CreditRule
from tests.goldens.runner import golden


def chosen(confidence: Tensor, masked: Tensor, kind: str, quota: int = 1, **options: object) -> Tensor:
    rule = find_rule(SelectionRule(kind, options))
    return select(rule, "published")(confidence, masked, torch.full((len(masked),), quota))


def check(case: GoldenCase, name: str, kind: str, quota: int = 1, **options: object) -> None:
    """By plain probabilities, and where the rule ranks those, by the exact form as well."""
    given = case.tensors
    shape = given["mask_index"].shape
    masked, confidence = given["mask_index"].view(-1, shape[-1]), given["confidence"].view(-1, shape[-1]).double()
    case.close(name, chosen(confidence, masked, kind, quota, **options).view(shape))
    logits = given["logits"].flatten(0, -2)
    odds = token_confidence(logits, logits.argmax(dim=1)).view(-1, shape[-1])
    rule = find_rule(SelectionRule(kind, options))
    exact = select(rule)(odds, masked, torch.full((len(masked),), quota))
    case.close(name, exact.view(shape))


def number(name: str, prefix: str) -> int:
    return int(name.removeprefix(prefix))


@golden("models/samplers", "sampler", "selection: fast_threshold")
def fast_dllm(case: GoldenCase) -> None:
    for name in case.names("expected"):
        if name.startswith("quota_"):
            check(case, name, "low-confidence", number(name, "quota_"))
        elif name.startswith("fast_threshold_"):
            check(case, name, "confidence-threshold", threshold=number(name, "fast_threshold_") / 100)
        else:
            _, tenths, form = name.split("_")
            last = "ignored" if form == "walk" else "tested"
            check(case, name, "factor", factor=int(tenths) / 10, last_rank=last)


@golden("models/samplers", "sampler", "selection: threshold_N")
def threshold(case: GoldenCase) -> None:
    for name in case.names("expected"):
        check(case, name, "confidence-threshold", threshold=number(name, "threshold_") / 100)


@golden("models/samplers", "sampler", "selection: hierarchical")
def hierarchical(case: GoldenCase) -> None:
    for name in case.names("expected"):
        parts = name.split("_")[2:]
        bounds = {part.rstrip("0123456789"): int(part.lstrip("lowthr")) / 100 for part in parts}
        check(case, name, "hierarchical", low_threshold=bounds.get("low", 0.0), threshold=bounds.get("thr", 1.0))


@golden("models/samplers", "sampler", "selection: one block of")
def block_strategies(case: GoldenCase) -> None:
    given = case.tensors
    masked = given["mask_index"][None]
    for name in case.names("expected"):
        kind, *rest = name.split("_")
        if kind == "static":
            check(case, name, "low-confidence", int(rest[0]))
        elif kind == "dynamic":
            bound, quota = int(rest[0].removeprefix("thr")) / 100, int(rest[1].removeprefix("k"))
            check(case, name, "dynamic-threshold", quota, threshold=bound)
        elif kind == "sequential":
            position = -torch.arange(masked.shape[1])[None].double()
            case.close(name, chosen(position, masked, "left-to-right", int(rest[0]))[0])
        else:
            entropy = given["entropy"][None].double()
            case.close(name, chosen(-entropy, masked, "entropy-bounded", bound=int(rest[1]) / 100)[0])


@golden("models/samplers", "sampler", "selection: credit decoding")
def credit(case: GoldenCase) -> None:
    published, given = case.settings, case.tensors
    rule = CreditRule(published["credit_alpha"], published["boost_gamma"], published["decay_beta"])
    masked, canvas = given["mask_index"], given["x"]
    held = torch.zeros_like(given["logits_0"][0])
    for step in range(sum(name.startswith("logits_") for name in case.names("input"))):
        raw, first = given[f"logits_{step}"][0], torch.full(masked.shape[1:], step == 0)
        # A committed position has no further forwards; what it holds is not read.
        held = torch.where(masked[0, :, None], rule.updated(held, raw, first=first), held * rule.decay)
        fused = rule.fused(held, raw)
        case.close(f"fused_{step}", fused[None])
        confidence, token = fused.softmax(dim=1).max(dim=1)
        moved = chosen(confidence[None].double(), masked, "confidence-threshold", threshold=published["threshold"])
        canvas = token[None].where(moved, canvas)
        case.close(f"transfer_{step}", moved)
        case.close(f"x_{step}", canvas)
        masked = masked & ~moved
