"""The reference engine: one process, one device. Other engines are tested against it."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dare_core.api import SectionConfig
from dare_core.engine.activations import checkpoint_activations
from dare_core.engine.config import LocalSection
from dare_core.engine.dropout import addressed_dropout, dropout_modules
from dare_core.engine.guard import check_scores, check_upstream, nonfinite_names
from dare_core.engine.microbatches import by_token_budget, view_tokens
from dare_core.engine.optimizer import Optimizer
from dare_core.engine.reference import ReferencePolicy, reference_policy
from dare_core.errors import NonFiniteError, Problem, UserError
from dare_core.interfaces.engine import Engine, EngineInputs, Objective, PolicyName, StepReport
from dare_core.types import Address, Scores, Views

_SCORES = ("logp", "entropy", "value")
_COUNTERS = ("forwards", "forward_tokens", "backward_tokens")


class LocalEngine(Engine):
    """Micro-batches by token budget, gradient accumulation, AdamW.

    The module rests in evaluation mode, as decoders that share it expect; it trains only inside the verbs that
    gather gradients. Scores come back to the device of the views: the model may be on a GPU while rows, estimates
    and losses, which are small, stay on the CPU.

    Raises:
        UserError: nothing is trainable, the model comes with a weight that is not finite, or dropout meets an update
            that may need two passes.
    """

    config: LocalSection

    def __init__(self, config: SectionConfig, inputs: EngineInputs) -> None:
        super().__init__(config, inputs)
        self._module = inputs.adapter.module
        self._device = next(self._module.parameters()).device
        self._drops = self._checked_dropout()
        self._check_parameters()
        self._reference: ReferencePolicy | None = None
        if inputs.keep_reference:
            moves = self.config.reference_every is not None
            self._reference = reference_policy(inputs.adapter, inputs.peft, moves=moves)
        if self.config.activation_checkpointing:
            checkpoint_activations(self._module, inputs.adapter.wrap_units)
        self._optimizer = Optimizer(self._module, inputs.optim, inputs.total_updates)
        self._counters = dict.fromkeys(_COUNTERS, 0)
        self._module.eval()

    # -- scoring -------------------------------------------------------------------------------------

    def score(
        self, views: Views, policy: PolicyName, *, entropy: bool = False, parts: Sequence[Tensor] | None = None
    ) -> Scores:
        """See :meth:`Engine.score`."""
        if parts is None:
            parts = by_token_budget(view_tokens(views), self.config.tokens_per_microbatch)
        with torch.no_grad(), self.policy(policy):
            return _scattered([(part, self._forward(views.take(part), entropy)) for part in parts], views)

    def _forward(self, views: Views, entropy: bool) -> Scores:
        def run() -> Scores:
            with self._autocast():
                return self.adapter.token_logp(views.to(self._device), entropy=entropy)

        scores = _on(views.inputs.device, run())
        self._counters["forwards"] += len(views)
        self._counters["forward_tokens"] += int(view_tokens(views).sum())
        check_scores(scores, views, self._module, run)
        return scores

    # -- gradients -----------------------------------------------------------------------------------

    def accumulate(self, views: Views, upstream: Scores) -> None:
        """See :meth:`Engine.accumulate`. Views whose upstream is zero everywhere have no gradient and are not run."""
        check_upstream(upstream, views)
        moved = _nonzero(upstream)
        for part in by_token_budget(view_tokens(views.take(moved)), self.config.tokens_per_microbatch):
            index = moved.nonzero()[:, 0][part]
            with self._training():
                scores = self._forward(views.take(index), upstream.entropy is not None)
                self._backward(scores, upstream.take(index), views.take(index))

    def accumulate_direct(self, views: Views, objective: Objective, parts: list[Tensor]) -> Scores:
        """See :meth:`Engine.accumulate_direct`. A part without a gradient is not taken backwards."""
        entropy = objective.algorithm.uses_entropy
        held: Scores | None = None
        for number, part in enumerate(parts):
            with self._training(), self._dropout_draws(number):
                scores = self._forward(views.take(part), entropy)
                held = _zeros(views, scores) if held is None else held
                leaves = scores.leaves()
                loss = objective(_placed(held, part, leaves)).loss
                if loss.requires_grad:
                    torch.autograd.backward(loss)
                upstream = leaves.gradients()
                if bool(torch.isfinite(loss)):
                    # One that is not is told of by itself.
                    check_upstream(upstream, views.take(part))
                if bool(_nonzero(upstream).any()):
                    self._backward(scores, upstream, views.take(part))
            held = _placed(held, part, scores.detached())
        return Scores(logp=torch.zeros(views.inputs.shape, device=views.inputs.device)) if held is None else held

    def _backward(self, scores: Scores, upstream: Scores, views: Views) -> None:
        pairs = [(live, t) for live, t in zip(_kinds(scores), _kinds(upstream), strict=True) if live.requires_grad]
        if pairs:
            torch.autograd.backward([live for live, _ in pairs], [t for _, t in pairs])
            self._counters["backward_tokens"] += int(view_tokens(views).sum())

    def fits(self, views: Views) -> bool:
        """See :meth:`Engine.fits`."""
        return int(view_tokens(views).sum()) <= self.config.tokens_per_microbatch

    def token_budget(self) -> int:
        """See :meth:`Engine.token_budget`."""
        return self.config.tokens_per_microbatch

    # -- optimizer step ------------------------------------------------------------------------------

    def step(self) -> StepReport:
        """See :meth:`Engine.step`.

        Raises:
            NonFiniteError: a gradient or a stepped weight is not finite; names the parameters.
        """
        rate, norm = self._optimizer.rate, self._optimizer.gradient_norm()
        if norm != norm or norm in (float("inf"), float("-inf")):
            names = nonfinite_names(self._optimizer.gradients().items())
            return self.reject(NonFiniteError(f"gradient of {', '.join(map(repr, names)) or 'the norm'} is not finite"))
        self._optimizer.apply(norm)
        self._move_reference()
        names = nonfinite_names(self._optimizer.named_weights())
        if names:
            raise NonFiniteError(f"weight {', '.join(map(repr, names))} is not finite after the optimizer step")
        return StepReport(applied=True, grad_norm=norm, learning_rate=rate)

    def reject(self, error: NonFiniteError) -> StepReport:
        """See :meth:`Engine.reject`. A weight that is not finite cannot heal, so it always stops the run."""
        if self.config.on_nonfinite == "stop" or nonfinite_names(self._module.named_parameters()):
            self._optimizer.clear()
            raise error
        rate = self._optimizer.rate
        self._optimizer.pass_over()
        self._move_reference()
        return StepReport(applied=False, grad_norm=float("nan"), learning_rate=rate)

    def _move_reference(self) -> None:
        every = self.config.reference_every
        if self._reference is not None and every is not None and self._optimizer.updates % every == 0:
            self._reference.follow(self.config.reference_mix)

    # -- state ---------------------------------------------------------------------------------------

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See :meth:`Engine.weights`."""
        yield from self.adapter.published()

    def save(self, folder: Path) -> None:
        """Write weights.safetensors (trainable, full precision), optimizer.safetensors, engine.json and, of a reference
        policy that moves, reference.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        weights, state = self._optimizer.tensors()
        save_file({name: t.contiguous() for name, t in weights.items()}, folder / "weights.safetensors")
        save_file({name: t.contiguous() for name, t in state.items()}, folder / "optimizer.safetensors")
        if self._reference is not None and self.config.reference_every is not None:
            kept = self._reference.tensors()
            save_file({name: t.contiguous() for name, t in kept.items()}, folder / "reference.safetensors")
        text = json.dumps({"updates": self._optimizer.updates, "counters": self._counters}, indent=2)
        (folder / "engine.json").write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Restore what :meth:`save` wrote, bit for bit.

        Raises:
            UserError: files are missing, or belong to a model with other trainable parameters.
        """
        try:
            state = json.loads((folder / "engine.json").read_text(encoding="utf-8"))
            weights, moments = load_file(folder / "weights.safetensors"), load_file(folder / "optimizer.safetensors")
            self._optimizer.restore(weights, moments)
            if self._reference is not None and self.config.reference_every is not None:
                self._reference.restore(load_file(folder / "reference.safetensors"))
        except (OSError, ValueError) as error:
            raise UserError(Problem(f"trainer state cannot be restored: {error}", where=str(folder))) from error
        self._optimizer.updates = state["updates"]
        self._counters = dict(state["counters"])

    def counters(self) -> Mapping[str, Any]:
        """See :meth:`Engine.counters`. Peak memory is in bytes: of the device, or of the process on CPU."""
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {**self._counters, "peak_memory": peak}

    # -- modes ---------------------------------------------------------------------------------------

    @contextmanager
    def _training(self) -> Iterator[None]:
        self._module.train()
        try:
            with torch.enable_grad():
                yield
        finally:
            self._module.eval()

    def policy(self, name: PolicyName) -> AbstractContextManager[None]:
        """See :meth:`Engine.policy`."""
        if name == "live":
            return nullcontext()
        if self._reference is None:
            raise ValueError("this engine was built without a reference policy")
        return self._reference.active()

    def _autocast(self) -> AbstractContextManager[Any]:
        wanted = self.config.autocast
        on_cuda = self._device.type == "cuda" and torch.cuda.is_bf16_supported()
        if wanted == "bfloat16" or (wanted == "auto" and on_cuda):
            return torch.autocast(self._device.type, dtype=torch.bfloat16)
        return nullcontext()

    def _dropout_draws(self, part: int) -> AbstractContextManager[None]:
        if not self._drops:
            return nullcontext()
        address = Address(self.inputs.seed, f"dropout/part-{part}", self._optimizer.updates)
        return addressed_dropout(address, self._device)

    # -- checks --------------------------------------------------------------------------------------

    def _checked_dropout(self) -> bool:
        names = dropout_modules(self._module)
        if names and self.config.update != "direct":
            raise UserError(
                Problem(
                    f"dropout in {len(names)} modules (first: '{names[0]}') changes scores between the two passes of "
                    f"an update; engine.update is '{self.config.update}'",
                    path="engine.update",
                    hint="set dropout to 0 (peft.dropout for adapters), or engine.update: direct",
                )
            )
        return bool(names)

    def _check_parameters(self) -> None:
        names = nonfinite_names(self._module.named_parameters())
        if names:
            message = f"weight {', '.join(map(repr, names))} of the loaded model is not finite"
            raise UserError(Problem(message, path="model", hint="its files are damaged; fetch or train them again"))
        if not any(p.requires_grad for p in self._module.parameters()):
            raise UserError(Problem("no parameter of the model is trainable", path="peft"))


def _on(device: torch.device, scores: Scores) -> Scores:
    def move(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(device)

    return Scores(
        logp=scores.logp.to(device),
        entropy=move(scores.entropy),
        value=move(scores.value),
        correct=move(scores.correct),
    )


def _kinds(scores: Scores) -> list[Tensor]:
    """The differentiable kinds that ``scores`` holds, in a fixed order."""
    return [tensor for name in _SCORES if (tensor := getattr(scores, name)) is not None]


def _nonzero(upstream: Scores) -> Tensor:
    """[N] bool views with an upstream gradient that is not zero."""
    return torch.stack([(t != 0).any(dim=1) for t in _kinds(upstream)]).any(dim=0)


def _zeros(views: Views, like: Scores) -> Scores:
    """Zeros [N,L] for every kind of score that ``like`` holds."""

    def blank(scores: Tensor | None) -> Tensor | None:
        return None if scores is None else scores.new_zeros(views.inputs.shape)

    return Scores(
        logp=like.logp.new_zeros(views.inputs.shape),
        entropy=blank(like.entropy),
        value=blank(like.value),
        correct=blank(like.correct),
    )


def _placed(held: Scores, index: Tensor, part: Scores) -> Scores:
    """``held`` with the rows at ``index`` [M] replaced by those of ``part``, differentiable in ``part``."""

    def put(base: Tensor | None, values: Tensor | None) -> Tensor | None:
        return None if base is None or values is None else base.to(values.dtype).index_copy(0, index, values)

    logp = put(held.logp, part.logp)
    assert logp is not None
    return Scores(
        logp=logp,
        entropy=put(held.entropy, part.entropy),
        value=put(held.value, part.value),
        correct=put(held.correct, part.correct),
    )


def _scattered(parts: list[tuple[Tensor, Scores]], views: Views) -> Scores:
    """Scores of all views, in their order, from those of parts that together hold each view once."""

    def joined(name: str) -> Tensor | None:
        tensors = [getattr(scores, name) for _, scores in parts]
        if not tensors or tensors[0] is None:
            return None
        full = torch.zeros(views.inputs.shape, dtype=tensors[0].dtype, device=tensors[0].device)
        for (index, _), tensor in zip(parts, tensors, strict=True):
            full[index] = tensor
        return full

    logp = joined("logp")
    if logp is None:
        logp = torch.zeros(views.inputs.shape, device=views.inputs.device)
    return Scores(logp=logp, entropy=joined("entropy"), value=joined("value"), correct=joined("correct"))
