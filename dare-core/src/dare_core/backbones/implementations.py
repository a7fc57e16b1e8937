"""Which implementation of attention a model computes with.

All compute the same function of the same packed rows. ``sdpa`` runs everywhere, in every dtype, with gradients, and is
what ``auto`` means. Key-value caches have plans of their own, over the same torch function as ``sdpa``.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Literal

import torch

from dare_core.backbones.attention import PlanMaker, segment_plan
from dare_core.errors import Problem, UserError

_VARLEN_OPTIONS = {"scale", "enable_gqa"}


@dataclass(frozen=True)
class Attention:
    """A choice.

    Attributes:
        name: ``sdpa``, ``flex`` or ``flash``.
        plan: makes the plan of packed rows.
        described: for records.
    """

    name: str
    plan: PlanMaker
    described: str


def choose_attention(asked: Literal["auto", "sdpa", "flex", "flash"], device: torch.device) -> Attention:
    """The implementation asked for.

    Raises:
        UserError: this machine or this torch does not have it.
    """
    if asked == "flex":
        return _flex()
    if asked == "flash":
        return _flash(device)
    return Attention("sdpa", segment_plan, "sdpa (torch scaled_dot_product_attention, segment by segment)")


def _flex() -> Attention:
    try:
        from dare_core.backbones.flex import flex_plan
    except ImportError as error:
        raise _missing("flex", f"torch {torch.__version__} has no flex attention ({error})") from error
    return Attention("flex", flex_plan, "flex (torch flex_attention over block masks; caches: sdpa)")


def _flash(device: torch.device) -> Attention:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise _missing("flash", f"torch {torch.__version__} has no torch.nn.attention.varlen") from error
    if not signature(varlen_attn).parameters.keys() >= _VARLEN_OPTIONS:
        raise _missing(
            "flash", f"varlen_attn of torch {torch.__version__} lacks {' or '.join(sorted(_VARLEN_OPTIONS))}"
        )
    if device.type != "cuda":
        raise _missing("flash", f"it runs on NVIDIA GPUs, and the model is on {device}")
    if torch.cuda.get_device_capability(device) < (8, 0):
        raise _missing("flash", "the GPU's compute capability is below 8.0")
    from dare_core.backbones.varlen import varlen_plan

    return Attention("flash", varlen_plan, "flash (torch varlen_attn, one sequence per run; caches: sdpa)")


def _missing(name: str, why: str) -> UserError:
    return UserError(
        Problem(f"attention {name!r} is not available: {why}", path="model.attention", hint="take 'sdpa' or 'auto'")
    )
