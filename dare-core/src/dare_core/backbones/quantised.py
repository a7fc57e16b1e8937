"""A frozen base of few bits below trained low-rank adapters (QLoRA, Dettmers et al., NeurIPS 2023), by bitsandbytes.

The linear modules of the body are replaced as transformers does it; embeddings, norms, the output head and stacked
experts keep their dtype. Weights are read on the CPU and moved one module at a time, so the GPU never holds the
unquantised base.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from dare_core.errors import Problem, UserError

_OPTION = "model.quantise"
_HEAD = "lm_head"


def require_quantiser(device: torch.device) -> None:
    """Whether this machine can quantise; called before anything is read.

    Raises:
        UserError: bitsandbytes is not installed, or the model is not on a GPU.
    """
    problems = []
    if find_spec("bitsandbytes") is None:
        problems.append(
            Problem("needs the Python package 'bitsandbytes'", _OPTION, hint="pip install 'dare-core[quantised]'")
        )
    if device.type != "cuda":
        message = f"a quantised base needs an NVIDIA GPU, and the model goes to '{device}'"
        problems.append(Problem(message, _OPTION, hint="set it to null here, or run on a machine with a GPU"))
    if problems:
        raise UserError(problems)


def quantise(module: Any, kind: str, device: torch.device) -> None:
    """Replace the body's linear modules by ones of few bits, in place, and move everything to ``device``.

    Args:
        module: on the CPU, with the output head as ``lm_head``.
        kind: ``nf4``, ``fp4`` or ``int8``.
        device: where it goes.
    """
    import bitsandbytes
    from transformers import BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear

    held = {name: part for name, part in module.named_modules() if type(part) is nn.Linear and name != _HEAD}
    computed = next(iter(held.values())).weight.dtype
    config: Any = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_8bit=kind == "int8",
        load_in_4bit=kind != "int8",
        bnb_4bit_quant_type="fp4" if kind == "fp4" else "nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=computed,
    )
    replace_with_bnb_linear(module, [_HEAD], config)
    packed = bitsandbytes.nn.Int8Params if kind == "int8" else bitsandbytes.nn.Params4bit
    for name, linear in held.items():
        part = module.get_submodule(name)
        options = {key: value for key, value in part.weight.__dict__.items() if key not in ("SCB", "CB")}
        part.weight = packed(linear.weight.data, requires_grad=False, **options).to(device)
        if linear.bias is not None:
            part.bias = nn.Parameter(linear.bias.data.to(device), requires_grad=False)
    # peft asks the model which of its adapters to use.
    module.is_loaded_in_8bit, module.is_loaded_in_4bit = kind == "int8", kind != "int8"
    module.to(device)


def refuse_saving(kind: str | None) -> None:
    """Raise where the base is quantised: its published weights are no longer there.

    Raises:
        UserError: says what to do instead.
    """
    if kind is not None:
        message = f"weights in {kind} are not the published ones, so no model folder can be written from them"
        hint = "save the adapter; to merge it, load the model without 'quantise'"
        raise UserError(Problem(message, _OPTION, hint=hint))
