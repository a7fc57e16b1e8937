"""Low-rank adapters through peft: attach, switch off, save, load and merge without touching the live module.

Hu et al., "LoRA", ICLR 2022; Liu et al., "DoRA", ICML 2024; Kalajdzievski, "rsLoRA", 2023. First values of
A are uniform(-1/sqrt(in), 1/sqrt(in)) as in peft, but addressed by the run's seed; B starts at zero. The
output head is computed apart from its module and can never be adapted.

Targets are names of linear modules, or of parameters that stack experts [E,out,in]: each expert then has its
own pair of matrices, and peft adds their products to the stack in every forward, without dropout or DoRA.
"""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dare_core.backbones.fresh import addressed_uniform
from dare_core.errors import Problem, UserError

if TYPE_CHECKING:
    from peft import PeftModel

    from dare_core.spec.sections import PeftSection

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Attached:
    """Adapters on a module. ``model`` wraps the same module object; both stay usable."""

    model: PeftModel

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """The base alone while open."""
        with self.model.disable_adapter():
            yield

    def save(self, folder: Path) -> None:
        """Write adapter_config.json and adapter_model.safetensors, as peft reads them."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        state = get_peft_model_state_dict(self.model, save_embedding_layers=False)
        save_file({key: value.detach().cpu().contiguous() for key, value in state.items()}, folder / WEIGHTS)
        config = self.model.peft_config["default"].to_dict() | {"inference_mode": True}
        # Sets have no order of their own; sorted, the same adapter gives the same file.
        plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
        (folder / CONFIG).write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def attach(
    module: nn.Module,
    section: PeftSection,
    groups: Mapping[str, Sequence[str] | str],
    published_names: Mapping[str, str | tuple[str, ...]],
    *,
    seed: int,
    base: str | None,
) -> Attached:
    """Freeze ``module`` and add adapters, or those of ``section.adapter``.

    Args:
        module: with the output head as ``lm_head``.
        section: type, rank, scale, targets.
        groups: the family's named target groups.
        published_names: published module names -> the module's own, several where one was split.
        seed: addresses the first values.
        base: recorded in the adapter's files as the model it belongs to.

    Raises:
        UserError: unknown targets, the output head as a target, or adapter files that do not fit (named).
    """
    from peft import LoraConfig, get_peft_model

    targets = _targets(module, section, groups, published_names)
    stored = None if section.adapter is None else _read_folder(Path(section.adapter))
    if stored is not None:
        _check_options(Path(section.adapter or ""), stored[0], section, targets)
    linear, stacked = _split(module, targets)
    if stacked and (section.dropout or section.kind == "dora"):
        raise UserError(
            Problem(
                f"adapters of stacked experts ({', '.join(stacked)}) have neither dropout nor DoRA", path="peft.targets"
            )
        )
    config = LoraConfig(
        r=section.r,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=linear,
        target_parameters=stacked or None,
        use_dora=section.kind == "dora",
        use_rslora=section.kind == "rslora",
        bias="none",
    )
    training = module.training
    # peft fills its matrices from the global generator; they are filled again below, and it is put back.
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        model = get_peft_model(module, config)
    config.base_model_name_or_path = base
    model.train(training)
    attached = Attached(model)
    if stored is None:
        _first_values(module, seed)
    else:
        _load_tensors(attached, Path(section.adapter or ""), stored[1])
    return attached


def _targets(
    module: nn.Module,
    section: PeftSection,
    groups: Mapping[str, Sequence[str] | str],
    published_names: Mapping[str, str | tuple[str, ...]],
) -> list[str] | str:
    if isinstance(section.targets, str):
        if section.targets not in groups:
            raise UserError(
                Problem(
                    f"unknown target group {section.targets!r}; this family has {', '.join(sorted(groups))}",
                    path="peft.targets",
                    hint="or give a list of module names",
                )
            )
        group = groups[section.targets]
        targets: list[str] | str = group if isinstance(group, str) else list(group)
    else:
        named = [published_names.get(name, name) for name in section.targets]
        targets = [own for entry in named for own in ([entry] if isinstance(entry, str) else entry)]
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    body = [name for name in linear if name != "lm_head"]
    known = [*linear, *_stacks(module)]
    if isinstance(targets, str):
        unmatched = [] if any(re.fullmatch(targets, name) for name in body) else [targets]
        heads = [targets] if re.fullmatch(targets, "lm_head") else []
    else:
        unmatched = [t for t in targets if not _matches(t, known)]
        heads = [t for t in targets if t == "lm_head"]
    problems = [Problem(f"{name!r} matches no linear module", path="peft.targets") for name in unmatched]
    if problems:
        experts = {".".join(name.split(".")[-2:]) for name in _stacks(module)}
        names = sorted({name.rpartition(".")[2] for name in body} | experts | set(published_names))
        problems[-1] = Problem(problems[-1].message, path="peft.targets", hint=f"modules: {', '.join(names)}")
    problems += [
        Problem(f"{name!r} is the output head, which cannot be adapted", path="peft.targets") for name in heads
    ]
    if problems:
        raise UserError(problems)
    return targets


def _stacks(module: nn.Module) -> list[str]:
    """Names of parameters that stack experts."""
    return [name for name, parameter in module.named_parameters() if parameter.dim() == 3]


def _matches(target: str, names: Sequence[str]) -> bool:
    return any(name == target or name.endswith(f".{target}") for name in names)


def _split(module: nn.Module, targets: list[str] | str) -> tuple[list[str] | str, list[str]]:
    """Targets that are modules, and targets that are stacked experts. A name of both means the modules."""
    if isinstance(targets, str):
        return targets, []
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    stacked = [target for target in targets if not _matches(target, linear)]
    return [target for target in targets if target not in stacked], stacked


def _first_values(module: nn.Module, seed: int) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if ".lora_A." in name:
                bound = parameter.shape[1] ** -0.5
                parameter.copy_((2 * addressed_uniform(seed, name, parameter.shape) - 1) * bound)


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors.torch import load_file

    from dare_core.backbones.folders import read_json

    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise UserError(
            Problem(
                f"no {' and no '.join(missing)} in the adapter folder",
                path="peft.adapter",
                where=str(folder),
                hint="an adapter in peft's format has both, weights as safetensors",
            )
        )
    return read_json(folder / CONFIG), load_file(folder / WEIGHTS)


def _check_options(folder: Path, stored: Mapping[str, Any], section: PeftSection, targets: list[str] | str) -> None:
    kind = "dora" if stored.get("use_dora") else "rslora" if stored.get("use_rslora") else "lora"
    modules = stored.get("target_modules")
    if not isinstance(modules, str):
        modules = [*(modules or ()), *(stored.get("target_parameters") or ())]
    pairs = {
        "kind": (kind, section.kind),
        "r": (stored.get("r"), section.r),
        "alpha": (stored.get("lora_alpha"), section.alpha),
        "targets": (
            modules if isinstance(modules, str) else sorted(modules),
            targets if isinstance(targets, str) else sorted(set(targets)),
        ),
    }
    problems = [
        Problem(f"the adapter has {there!r}, the spec says {here!r}", path=f"peft.{name}", where=str(folder))
        for name, (there, here) in pairs.items()
        if there != here
    ]
    if str(stored.get("peft_type", "LORA")).rpartition(".")[2] != "LORA":
        problems.insert(0, Problem(f"adapter type {stored['peft_type']!r}; only LORA can be loaded", where=str(folder)))
    if problems:
        raise UserError(problems)


def _load_tensors(attached: Attached, folder: Path, tensors: Mapping[str, Tensor]) -> None:
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    wanted = get_peft_model_state_dict(attached.model, save_embedding_layers=False)
    where = str(folder / WEIGHTS)
    problems = [Problem(f"missing tensor {key}", where=where) for key in wanted if key not in tensors]
    problems += [Problem(f"extra tensor {key}", where=where) for key in tensors if key not in wanted]
    problems += [
        Problem(f"tensor {key} has shape {tuple(tensors[key].shape)}; expected {tuple(tensor.shape)}", where=where)
        for key, tensor in wanted.items()
        if key in tensors and tensors[key].shape != tensor.shape
    ]
    if problems:
        raise UserError(problems)
    set_peft_model_state_dict(attached.model, dict(tensors))


def plain_lookup(module: nn.Module) -> Callable[[str], Tensor]:
    """Parameters by their names before adapters were attached; adapters left out."""

    def lookup(name: str) -> Tensor:
        owner, _, leaf = name.rpartition(".")
        found: Tensor = getattr(_wrappers(module.get_submodule(owner))[-1], leaf)
        return found

    return lookup


def _wrappers(part: Any) -> list[Any]:
    """The module and what it wraps, outermost first: peft nests one wrapper per stacked parameter."""
    nested = [part]
    while hasattr(nested[-1], "base_layer"):
        nested.append(nested[-1].base_layer)
    return nested


def merged_lookup(module: nn.Module) -> Callable[[str], Tensor]:
    """Like :func:`plain_lookup`, with switched-on adapters merged into a copy of the one layer asked for."""
    plain = plain_lookup(module)
    # Experts are asked for one by one, gate, up and down in turn: each stack is merged once, not once per expert.
    stacks: dict[str, dict[str, Tensor]] = {}

    def lookup(name: str) -> Tensor:
        owner, _, leaf = name.rpartition(".")
        part: Any = module.get_submodule(owner)
        stack = [one for one in _wrappers(part) if getattr(one, "parameter_name", None) == leaf]
        if stack and not part.disable_adapters:
            if owner not in stacks:
                stacks.clear()
                stacks[owner] = {}
            if leaf not in stacks[owner]:
                with torch.no_grad():
                    stacks[owner][leaf] = plain(name).detach() + stack[0].get_delta_weight("default")
            return stacks[owner][leaf]
        if leaf != "weight" or not hasattr(part, "base_layer") or part.disable_adapters:
            return plain(name)
        with torch.no_grad():
            merged = copy.deepcopy(part)
            merged.merge()
            weight: Tensor = merged.base_layer.weight.detach()
        return weight

    return lookup
