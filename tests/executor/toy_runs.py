"""Whole runs on toys: a folder with specs, data and a reward, and a distribution that offers the toys as families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from dare_core.testing.fake_distributions import FakeDistribution

TOYS = FakeDistribution(
    name="dare-toys",
    source="""
from dare_core.api import Component, hookimpl


@hookimpl
def dare_model_adapters():
    words = {f"toy-{name}": frozenset({name, "token-logp", "mask-token", "value-head"}) for name in ("masked", "block")}
    names = {"toy-masked": "ToyMasked", "toy-block": "ToyBlock"}
    return [
        Component(
            kind=kind,
            target=f"dare_core.testing.toy_models:{name}",
            config=f"dare_core.testing.toy_config:{name}Section",
            summary="a toy",
            provides=words[kind],
        )
        for kind, name in names.items()
    ]


@hookimpl
def dare_detect_model(config):
    kind = config.get("model_type", "")
    return kind if kind.startswith("toy-") else None
""",
    files={
        "rewards.py": '''
import os, pathlib, signal, time


def share_of_a(prompt, response):
    return response.count("a") / 6


def flat(prompt, response):
    return 1.0


def flat_for_some(prompt, response):
    """Equal rewards for prompts that begin with a, b or c; rewards of a crowded scale for the others."""
    return 1.0 if prompt.text[0] in "abc" else sum((i + 1) * ord(c) for i, c in enumerate(response)) / 1e4


def broken(prompt, response):
    raise RuntimeError("no judge at home")


def slow(prompt, response):
    pathlib.Path("judging").touch()
    time.sleep(0.05)
    return share_of_a(prompt, response)


def twice(prompt, response):
    """Sends two signals in a row, once."""
    path = pathlib.Path("signal")
    if path.exists():
        path.unlink()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    return share_of_a(prompt, response)


def interrupting(prompt, response):
    """Sends the process what the file `signal` names, once."""
    path = pathlib.Path("signal")
    if path.exists():
        number = int(path.read_text())
        path.unlink()
        os.kill(os.getpid(), number)
    return share_of_a(prompt, response)
'''
    },
)

PROMPTS = ["ab", "bc", "cd", "de", "ef", "fa", "abc", "bcd", "cde", "def"]


def digits(prompt: object, text: str) -> float:
    """A reward that differs between most responses."""
    return sum(character.isdigit() for character in text) + len(text) / 99


def write_inputs(folder: Path) -> None:
    """Data of a toy run: train.jsonl, held.jsonl, pairs of none."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"id": f"row-{i}", "question": text, "answer": "aab"[: 1 + i % 3]} for i, text in enumerate(PROMPTS)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    # Toys need no tokenizer, but a fresh model names a folder with one.
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    held = [{"id": f"held-{i}", "question": text, "answer": "a"} for i, text in enumerate(["fed", "eca", "bdf"])]
    (folder / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held), encoding="utf-8")


def online_spec(**changes: Any) -> dict[str, Any]:
    """d1 on the masked toy; ``section__key=value`` changes one value, ``section=None`` removes a section."""
    spec: dict[str, Any] = {
        "dare": 1,
        "run": {"name": "toy", "steps": 4, "seed": 3, "save_every": 2},
        "model": {
            "kind": "toy-masked",
            "config": {"vocab_size": 8, "max_positions": 12},
            "init": "random",
            "tokenizer": ".",
        },
        "data": {"kind": "jsonl", "path": "train.jsonl", "prompt": "{question}"},
        "rollout": {
            "new_tokens": 6,
            "block_length": 3,
            "steps_total": 4,
            "temperature": 1.0,
            "rows_per_batch": 5,
        },
        "reward": {"kind": "python", "function": "dare_toys.rewards:share_of_a"},
        "algorithm": {"kind": "d1", "group_size": 4, "inner_updates": 2},
        "optim": {"batch_size": 8, "lr": 0.05},
        "peft": None,
    }
    return _changed(spec, changes)


def offline_spec(**changes: Any) -> dict[str, Any]:
    """SFT on the masked toy."""
    spec = online_spec()
    for name in ("rollout", "reward"):
        del spec[name]
    spec["data"]["completion"] = "{answer}"
    spec["algorithm"] = {"kind": "sft"}
    spec["optim"] = {"batch_size": 4, "lr": 0.05, "warmup_steps": 2}
    return _changed(spec, changes)


def _changed(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if key:
            spec.setdefault(section, {})[key] = value
        elif value is None:
            spec[section] = None
        else:
            spec[section] = value
    return spec


def write_spec(folder: Path, spec: dict[str, Any], name: str = "spec.yaml") -> Path:
    """Write the spec, and the data beside it; returns the spec's path."""
    write_inputs(folder)
    (folder / name).write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    return folder / name


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def weights_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    """Trained tensors of a checkpoint."""
    return load_file(run / "checkpoints" / f"step_{step}" / "trainer" / "weights.safetensors")
