"""Golden cases of wd1."""

from __future__ import annotations

from dataclasses import replace

import torch

from dare_algos_grpo.config import Wd1Section
from dare_algos_grpo.wd1 import Wd1
from dare_core.testing.goldens import GoldenCase
from tests.goldens.handlers.algos_grpo import leaf
from tests.goldens.runner import golden
from tests.made_inputs import loss_inputs


@golden("algos-grpo", "loss", "wd1: no ratio and no clipping")
def wd1_loss(case: GoldenCase) -> None:
    t = case.tensors
    inputs = loss_inputs(leaf(t["in.logps"]), advantages=t["in.advantages"], completion=t["in.completion_mask"].bool())
    out = Wd1(Wd1Section()).loss(inputs).loss
    case.close("out.loss", out.detach())
    case.close("out.grad_logps", torch.autograd.grad(out, inputs.live.value)[0])
    case.close("out.loss_positive_only", Wd1(Wd1Section(repel_weight=0.0)).loss(inputs).loss.detach())
    flat = replace(inputs.advantages, value=torch.zeros_like(t["in.advantages"]))
    case.close("out.loss_zero_advantage", Wd1(Wd1Section()).loss(replace(inputs, advantages=flat)).loss.detach())
