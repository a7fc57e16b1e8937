"""What ``generate`` and ``chat`` share: a model, its decoder, and how both are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dare_core.capabilities import VOCABULARY
from dare_core.cli.spec_arguments import resolved_plan
from dare_core.components import Slot
from dare_core.errors import Problem, UserError
from dare_core.types.examples import Prompt

if TYPE_CHECKING:
    from dare_core.cli.sources import Source
    from dare_core.interfaces import RolloutBackend, RolloutRequest
    from dare_core.types import Rollout, Watch

Model = Annotated[
    Path | None, typer.Option("--model", help="Published model folder, run folder or checkpoint of a run.")
]
Adapter = Annotated[Path | None, typer.Option("--adapter", help="Adapter folder in peft's format.")]
Spec = Annotated[Path | None, typer.Option("--spec", help="Take model, adapter and rollout sections from this spec.")]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of the sampling draws; default: the spec's, or 0.")
]


class Decoder:
    """A model and the backend that decodes with it; weights are read when something is to be generated.

    Args:
        source: model, adapters and decoder.
        seed: of the draws.
    """

    def __init__(self, source: Source, seed: int) -> None:
        self._source, self._seed = source, seed
        self._backend: RolloutBackend | None = None

    @classmethod
    def choose(
        cls,
        *,
        model: Path | None,
        spec: Path | None,
        adapter: Path | None,
        overlays: Sequence[Path],
        sets: Sequence[str],
        seed: int | None,
    ) -> Decoder:
        """By a model folder or by a spec, as the arguments of a command say.

        Raises:
            UserError: anything is wrong with them.
        """
        from dare_core.cli.sources import source_of

        if (model is None) == (spec is None):
            raise UserError(Problem("give either --model, a model folder, or --spec"))
        if model is not None:
            source = source_of(model, adapter=adapter, wishes={}, sets=sets)
            check_needs(source)
        else:
            source = spec_source(Path(spec or ""), adapter, overlays, sets)
        return cls(source, source.seed if seed is None else seed)

    def generate(
        self, prompts: Sequence[Prompt], samples: int = 1, *, turn: int = 0, watch: Watch | None = None
    ) -> Rollout:
        """Responses to ``prompts``, which are checked before weights are read.

        Args:
            prompts: questions.
            samples: responses per prompt.
            turn: number of the call; draws of different turns differ. Turn 0 draws what a run's first rollout does, so
                a spec's own prompts give the same tokens here as there.
            watch: called after every forward.

        Raises:
            UserError: prompts do not fit, or weights do not.
        """
        from dare_core.interfaces import RolloutRequest
        from dare_core.types import Address

        settings = self._source.decoder.settings(self._source.facts.layout)
        address = Address(self._seed, "rollout", turn)
        request = RolloutRequest(prompts=prompts, samples=samples, settings=settings, address=address, watch=watch)
        return self._opened(request).generate(request)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, once something is being generated; empty before."""
        return "" if self._backend is None else self._backend.adapter.text.decode(tokens)

    def close(self) -> None:
        """Free the backend."""
        if self._backend is not None:
            self._backend.close()

    def _opened(self, request: RolloutRequest) -> RolloutBackend:
        if self._backend is None:
            from dare_core.diffusion.rollouts import encode_prompts
            from dare_core.loops.placement import load_model

            source = self._source
            codec = source.model.target().load_text(source.model.config)
            if codec is not None:
                encode_prompts(codec, source.facts, request)
            adapter = load_model(source.model, source.peft, self._seed)
            self._backend = source.rollout.target()(source.rollout.config, adapter)
        return self._backend


def spec_source(spec: Path, adapter: Path | None, overlays: Sequence[Path], sets: Sequence[str]) -> Source:
    """Model, trained adapter and decoder of a spec.

    Raises:
        UserError: anything is wrong with it, or it does not say how to decode.
    """
    from dare_core.cli.sources import Source
    from dare_core.loops.placement import peft_section_of

    plan = resolved_plan(spec, overlays, sets)
    if Slot.ROLLOUT not in plan:
        raise UserError(Problem("this spec has no rollout section, so nothing says how to decode", path="rollout"))
    if plan.facts is None:
        raise UserError(Problem("the model's config.json cannot be read", path="model.path"))
    peft = plan.peft if plan.peft is not None and plan.peft.adapter is not None else None
    return Source(
        model=plan[Slot.MODEL],
        peft=peft if adapter is None else peft_section_of(adapter),
        rollout=plan[Slot.ROLLOUT],
        facts=plan.facts,
        seed=plan.run.seed,
        run=None,
        weights={},
    )


def check_needs(source: Source) -> None:
    """The model provides what the backend needs; specs check this themselves.

    Raises:
        UserError: it does not.
    """
    model, rollout = source.model, source.rollout
    for word in sorted(rollout.component.needs - model.component.provides):
        slot, meaning = VOCABULARY[word]
        if slot is Slot.MODEL:
            message = (
                f"rollout '{rollout.name}' needs '{word}' ({meaning}), which model '{model.name}' does not provide"
            )
            raise UserError(Problem(message, path="rollout.kind"))
