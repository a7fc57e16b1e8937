"""AdamW with full-precision master weights, schedules and clipping.

Decoupled weight decay: Loshchilov & Hutter, "Decoupled weight decay regularization", ICLR 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from dare_core.spec.sections import OptimSection


def learning_rate(section: OptimSection, update: int, total: int) -> float:
    """Learning rate of the update with this index, from 0.

    Warmup rises linearly and reaches ``lr`` at the last of ``warmup_steps`` updates. After it, with p from 0 at the
    first update to 1 behind the last: ``linear`` falls as 1 - p and ``cosine`` as (1 + cos(pi p)) / 2, both towards
    ``min_lr_ratio * lr``.
    """
    if update < section.warmup_steps:
        return section.lr * (update + 1) / section.warmup_steps
    share = min(1.0, (update - section.warmup_steps) / max(1, total - section.warmup_steps))
    left = {"constant": 1.0, "linear": 1.0 - share, "cosine": 0.5 * (1.0 + math.cos(math.pi * share))}
    return section.lr * (section.min_lr_ratio + (1.0 - section.min_lr_ratio) * left[section.schedule])


class Optimizer:
    """Steps the trainable parameters of a module.

    Parameters in less than 32 bits have a float32 master copy: updates of a small learning rate would be rounded
    away otherwise. Their gradients are gathered in float32 as well.

    Attributes:
        updates: optimizer steps tried so far, the skipped ones included; the schedule's position.
    """

    def __init__(self, module: nn.Module, section: OptimSection, total_updates: int) -> None:
        self.updates = 0
        self._section = section
        self._total = total_updates
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._masters = {name: _master(p) for name, p in self._parameters.items()}
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:
                parameter.register_post_accumulate_grad_hook(_gather_into(self._masters[name]))  # type: ignore[no-untyped-call]
        matrices = [p for p in self._masters.values() if p.ndim >= 2]
        others = [p for p in self._masters.values() if p.ndim < 2]
        on_cpu = all(p.device.type == "cpu" for p in self._masters.values())
        self._adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": section.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=section.lr,
            betas=section.betas,
            eps=section.eps,
            # One pass over memory. On other devices the default is about as fast.
            fused=True if on_cpu else None,
        )

    @property
    def rate(self) -> float:
        """Learning rate of the next update."""
        return learning_rate(self._section, self.updates, self._total)

    def gradients(self) -> dict[str, Tensor]:
        """Gradients gathered so far, by parameter; zero where nothing was gathered."""
        for master in self._masters.values():
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        return {name: master.grad for name, master in self._masters.items() if master.grad is not None}

    def gradient_norm(self) -> float:
        """Norm over all gradients together."""
        return float(torch.nn.utils.get_total_norm(self.gradients().values()))

    def apply(self, norm: float) -> None:
        """Clip gradients whose norm is ``norm``, step, and move the schedule on."""
        bound = self._section.clip_norm
        if bound is not None and norm > bound:
            torch._foreach_mul_(list(self.gradients().values()), bound / norm)
        for group in self._adamw.param_groups:
            group["lr"] = self.rate
        self._adamw.step()
        self._publish()
        self.clear()
        self.updates += 1

    def pass_over(self) -> None:
        """Drop the gradients and move the schedule on without a step."""
        self.clear()
        self.updates += 1

    def clear(self) -> None:
        """Drop the gradients."""
        for held in (*self._masters.values(), *self._parameters.values()):
            held.grad = None

    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        """Trainable weights at full precision."""
        return self._masters.items()

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(trainable weights at full precision, optimizer state), by name, for saving."""
        state = {
            f"{name}/{key}": value
            for name, master in self._masters.items()
            for key, value in self._adamw.state.get(master, {}).items()
        }
        return {name: master.detach() for name, master in self._masters.items()}, state

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave.

        Raises:
            ValueError: the names are not those of this model's trainable parameters.
        """
        differing = sorted(weights.keys() ^ self._masters.keys())
        if differing:
            raise ValueError(f"saved and present trainable parameters differ: {', '.join(differing[:3])}")
        for name, master in self._masters.items():
            master.copy_(weights[name])
            moments = {key: state[f"{name}/{key}"] for key in _MOMENTS if f"{name}/{key}" in state}
            if moments:
                self._adamw.state[master] = {
                    key: value.clone() if key == "step" else value.to(master.device, copy=True)
                    for key, value in moments.items()
                }
        self._publish()

    @torch.no_grad()
    def _publish(self) -> None:
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:
                parameter.copy_(self._masters[name])


_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def _master(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.element_size() >= 4:
        return parameter
    return nn.Parameter(parameter.detach().float())


def _gather_into(master: nn.Parameter) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        if parameter.grad is None:
            return
        gradient = parameter.grad.float()
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None

    return hook
