"""The value model of a run, as far as a command needs it to write it out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dare_core.cli.context import catalog
from dare_core.cli.sources import checkpoint_of
from dare_core.components import Slot
from dare_core.errors import Problem, UserError
from dare_core.run.checkpoint import VALUE_STATE
from dare_core.spec.nodes import node_of
from dare_core.spec.options import OptionReader
from dare_core.spec.plan import Choice, Origin
from dare_core.spec.sections import PeftSection, ValueModelSection


@dataclass(frozen=True, kw_only=True)
class ValueSource:
    """What a run's value model is made from.

    Attributes:
        model: the policy's section, as the run started.
        peft: adapters it was trained with, or None.
        section: the value model's.
        seed: the run's.
        trainer: folder of its trained weights.
    """

    model: Choice
    peft: PeftSection | None
    section: ValueModelSection
    seed: int
    trainer: Path


def value_source_of(path: Path, best: bool) -> ValueSource:
    """The value model of a run or one of its checkpoints.

    Raises:
        UserError: it is neither, or was trained without a value model.
    """
    found = checkpoint_of(path, best)
    trainer = None if found is None else found[1].path / "trainer" / VALUE_STATE
    if found is None or trainer is None or not trainer.is_dir():
        raise UserError(Problem("no value model was trained here", where=str(path)))
    resolved = found[0].resolved()
    reader = OptionReader(catalog())
    origin = Origin(source="spec")
    model, algorithm = (
        reader.item(slot, node_of(resolved[str(slot)], origin), str(slot)) for slot in (Slot.MODEL, Slot.ALGORITHM)
    )
    if reader.problems or model is None or algorithm is None:
        raise UserError(reader.problems)
    section = algorithm.target()(algorithm.config).value_model
    if section is None:
        raise UserError(Problem("the run's algorithm has no value model", where=str(path)))
    peft = resolved.get("peft")
    return ValueSource(
        model=model,
        peft=None if peft is None else PeftSection.model_validate(peft),
        section=section,
        seed=int(resolved["run"]["seed"]),
        trainer=trainer,
    )
