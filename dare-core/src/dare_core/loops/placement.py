"""Loading a model: where its weights go and in which dtype."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file

from dare_core.errors import Problem, UserError
from dare_core.interfaces import ModelAdapter
from dare_core.spec.plan import Choice
from dare_core.spec.sections import ModelSection, PeftSection


def load_model(choice: Choice, peft: PeftSection | None, seed: int) -> ModelAdapter:
    """The model of a section with its adapters attached. Trained ones are tried before weights are read.

    Raises:
        UserError: files do not fit, or the device does not exist.
    """
    section = choice.config
    if not isinstance(section, ModelSection):
        raise TypeError(f"{choice.name} is configured by {type(section).__name__}, not by a model section")
    device = device_of(section)
    if peft is not None and peft.adapter is not None:
        choice.target().check_peft(section, peft)
    adapter: ModelAdapter = choice.target().load(section, device=device, dtype=dtype_of(section, device), seed=seed)
    if section.quantise is not None and adapter.describe().get("quantised") != section.quantise:
        message = f"model '{choice.name}' does not load quantised bases"
        raise UserError(Problem(message, path="model.quantise", hint="set it to null"))
    if peft is not None:
        adapter.attach_peft(peft)
    adapter.module.eval()
    return adapter


def load_value_model(choice: Choice, peft: PeftSection | None, seed: int, path: str | None) -> ModelAdapter:
    """A second model of a section's family, with a value head: the section's own, or of the folder ``path``.

    Raises:
        UserError: files do not fit, or the family carries no value head.
    """
    section = choice.config
    if path is not None and isinstance(section, ModelSection):
        other = section.model_copy(update={"path": path, "config": None, "init": None})
        choice = replace(choice, config=other)
    adapter = load_model(choice, peft, seed)
    adapter.attach_value_head()
    return adapter


@torch.no_grad()
def take_trained(adapter: ModelAdapter, trainer: Path) -> None:
    """Put the trained weights of a checkpoint's trainer state into the model.

    Raises:
        UserError: they are missing, or those of another model.
    """
    path = trainer / "weights.safetensors"
    try:
        found = load_file(path)
    except OSError as error:
        raise UserError(Problem(f"cannot be read: {error}", where=str(path))) from error
    present = {name: p for name, p in adapter.module.named_parameters() if p.requires_grad}
    if present.keys() != found.keys():
        differing = sorted(present.keys() ^ found.keys())
        message = f"saved and present trainable parameters differ: {', '.join(differing[:3])}"
        raise UserError(Problem(message, where=str(path)))
    for name, parameter in present.items():
        parameter.copy_(found[name])


def peft_section_of(folder: Path) -> PeftSection:
    """The section that attaches a trained adapter, by its adapter_config.json.

    Raises:
        UserError: no adapter lies there, or its targets are given as a pattern.
    """
    path = folder / "adapter_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        targets = config["target_modules"]
        rank, alpha = config["r"], config["lora_alpha"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(Problem(f"no adapter in peft's format: {error}", where=str(path))) from error
    if isinstance(targets, str):
        raise UserError(Problem("target_modules is a pattern; a list of module names is needed", where=str(path)))
    kind: Literal["lora", "dora", "rslora"] = "dora" if config.get("use_dora") else "lora"
    if config.get("use_rslora"):
        kind = "rslora"
    return PeftSection(kind=kind, r=rank, alpha=alpha, targets=tuple(targets), adapter=str(folder))


def device_of(section: ModelSection) -> torch.device:
    """The section's device; ``auto`` takes the first GPU there is.

    Raises:
        UserError: no such device on this machine.
    """
    if section.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(section.device)
    except RuntimeError as error:
        raise UserError(Problem(f"'{section.device}' is no device", path="model.device")) from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        present = torch.cuda.device_count()
        problem = Problem(f"'{section.device}' does not exist: {present} GPUs are visible", path="model.device")
        raise UserError(problem)
    return device


def dtype_of(section: ModelSection, device: torch.device) -> torch.dtype:
    """The section's dtype; ``auto`` is bfloat16 on a GPU that has it, else float32."""
    if section.dtype == "auto":
        capable = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if capable else torch.float32
    return torch.bfloat16 if section.dtype == "bfloat16" else torch.float32
