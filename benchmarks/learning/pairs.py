"""Pairs for ``dpo`` and ``vrpo``: the best and the worst response of the shared start to one prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.learning.rows import read


def write_pairs(runs: Path, task: str) -> None:
    """Write ``data/<task>-pairs.jsonl`` and its held-out sibling from what the start said at its last evaluation."""
    evaluations = runs / f"{task}-sft-seed0" / "eval"
    for source, name in (("pairs", f"{task}-pairs"), ("sampled", f"{task}-pairs-heldout")):
        path = runs / "data" / f"{name}.jsonl"
        if path.exists():
            continue
        newest = max(
            evaluations.glob(f"step_*-{source}"), key=lambda folder: int(folder.name.split("_")[1].split("-")[0])
        )
        pairs = pairs_of(read(newest / "items.jsonl"))
        path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")


def pairs_of(items: list[dict[str, Any]]) -> list[dict[str, str]]:
    """One pair per prompt whose responses differ in score: the first of the best and the first of the worst."""
    by_prompt: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        if item["score"] is not None and item["response"].strip():
            by_prompt.setdefault(item["id"], []).append(item)
    pairs = []
    for name, responses in by_prompt.items():
        best, worst = (choose(responses, key=lambda item: item["score"]) for choose in (max, min))
        if best["score"] > worst["score"]:
            sides = {"chosen": best["response"], "rejected": worst["response"]}
            pairs.append({"id": name, "prompt": best["prompt"], **sides})
    return pairs
