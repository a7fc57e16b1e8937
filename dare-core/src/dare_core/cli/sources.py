"""What commands are pointed at: a model folder, a run, or one of a run's checkpoints; and how it decodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_core.cli.context import catalog
from dare_core.components import Slot
from dare_core.errors import Problem, UserError
from dare_core.run.checkpoint import COMPLETE, Checkpoint, verify
from dare_core.run.folder import RunFolder
from dare_core.spec.merge import merged, with_sets
from dare_core.spec.nodes import Node, node_of
from dare_core.spec.options import OptionReader
from dare_core.spec.plan import Choice, Origin
from dare_core.spec.sections import ModelSection, PeftSection, RolloutSection
from dare_core.spec.selection import read_config
from dare_core.types import ModelFacts

NEW_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model to load and the decoder it came with.

    Attributes:
        model: its section.
        peft: adapters to attach, or None.
        rollout: the decoder.
        facts: of the model, read from its config.
        seed: the run's; 0 for a model folder.
        run: the run folder and step it comes from, or None.
        weights: folders whose content the model is, by role.
    """

    model: Choice
    peft: PeftSection | None
    rollout: Choice
    facts: ModelFacts
    seed: int
    run: tuple[Path, int] | None
    weights: Mapping[str, Path]

    @property
    def decoder(self) -> RolloutSection:
        """The decoder's options.

        Raises:
            TypeError: the backend is not configured by a rollout section.
        """
        section = self.rollout.config
        if not isinstance(section, RolloutSection):
            raise TypeError(f"{self.rollout.name} is not configured by a rollout section")
        return section


def source_of(
    path: Path, *, adapter: Path | None, wishes: Mapping[str, Any], sets: Sequence[str], best: bool = False
) -> Source:
    """The model at ``path``.

    Decoding options: ``sets`` over ``wishes`` over the model's own over the native backend's. A run's rollout section
    stands above all wishes but those about temperature, which in a run is one for exploring.

    Args:
        path: model folder, run folder or checkpoint.
        adapter: folder of an adapter to attach instead of the run's.
        wishes: dotted rollout options where nobody says otherwise.
        sets: ``path=value`` of the command line.
        best: of a run, the best checkpoint instead of the last one.

    Raises:
        UserError: it is none of these, or sections are wrong; carries every problem.
    """
    found = checkpoint_of(path, best)
    if found is None:
        if best:
            raise UserError(Problem("is no run, so it has no best checkpoint", where=str(path)))
        model, rollout = folder_choices(str(path), wishes, sets)
        peft, seed, run, weights = None, 0, None, {"model": path}
    else:
        folder, checkpoint = found
        verify(checkpoint)
        resolved = folder.resolved()
        model, rollout, peft, weights = _from_run(resolved, checkpoint, wishes, sets)
        seed, run = int(resolved["run"]["seed"]), (folder.path, checkpoint.step)
    if adapter is not None:
        from dare_core.loops.placement import peft_section_of

        peft, weights = peft_section_of(adapter), {**weights, "adapter": adapter}
    facts = _facts(model)
    return Source(model=model, peft=peft, rollout=rollout, facts=facts, seed=seed, run=run, weights=weights)


def folder_choices(folder: str, wishes: Mapping[str, Any], sets: Sequence[str]) -> tuple[Choice, Choice]:
    """Model and native backend of a model folder: the family by config.json, then its wishes, ``wishes`` and ``sets``.

    Raises:
        UserError: no installed family recognises it, or options are wrong.
    """
    config, reason = read_config(Path(folder))
    kind = None if config is None else catalog().detect_model(config)
    if kind is None:
        raise UserError(Problem(reason or "no installed family recognises its config.json", where=folder))
    own = catalog().find(Slot.MODEL, kind).component.defaults
    base = {"model": {"kind": kind, "path": folder}, "rollout": {"kind": "native", "new_tokens": NEW_TOKENS}}
    return _chosen([base, own, wishes], sets)


def _from_run(
    resolved: Mapping[str, Any], checkpoint: Checkpoint, wishes: Mapping[str, Any], sets: Sequence[str]
) -> tuple[Choice, Choice, PeftSection | None, dict[str, Path]]:
    model = dict(resolved["model"])
    trained, adapter = checkpoint.path / "model", checkpoint.path / "adapter"
    peft, weights = None, {"model": trained}
    if adapter.is_dir():
        peft = PeftSection.model_validate({**resolved["peft"], "adapter": str(adapter)})
        weights = {"adapter": adapter} | ({"model": Path(model["path"])} if model.get("path") else {})
    else:
        model = {name: value for name, value in model.items() if name not in ("config", "init")}
        model["path"] = str(trained)
    own = catalog().find(Slot.MODEL, model["kind"]).component.defaults
    base = {"model": model, "rollout": {"kind": "native", "new_tokens": NEW_TOKENS}}
    layers: list[Mapping[str, Any]] = [base, own, wishes]
    if resolved.get("rollout"):
        layers.append({"rollout": resolved["rollout"]})
        layers.append({"rollout.temperature": wishes.get("rollout.temperature", 0.0)})
    chosen, rollout = _chosen(layers, sets)
    return chosen, rollout, peft, weights


def _chosen(layers: Sequence[Mapping[str, Any]], sets: Sequence[str]) -> tuple[Choice, Choice]:
    root, problems = Node({}, Origin(source="default")), list[Problem]()
    for layer in layers:
        dotted = {key: value for key, value in layer.items() if "." in key}
        nested = {key: value for key, value in layer.items() if "." not in key}
        root = merged(root, node_of(nested, Origin(source="default")))
        root, found = with_sets(root, [f"{key}={json.dumps(value)}" for key, value in dotted.items()])
        problems += found
    root, found = with_sets(root, sets)
    reader = OptionReader(catalog(), problems=[*problems, *found])
    _refuse_other_sections(root, reader)
    model = reader.item(Slot.MODEL, root.entries["model"], "model")
    rollout = reader.item(Slot.ROLLOUT, root.entries["rollout"], "rollout")
    if reader.problems or model is None or rollout is None:
        raise UserError(reader.problems)
    return model, rollout


def _refuse_other_sections(root: Node, reader: OptionReader) -> None:
    for name, node in root.entries.items():
        if name not in ("model", "rollout"):
            message = "can be set in a spec, but not here"
            reader.problems.append(Problem(message, name, node.where, "set model.* or rollout.* options"))


def checkpoint_of(path: Path, best: bool) -> tuple[RunFolder, Checkpoint] | None:
    """The run and checkpoint that ``path`` names; None if it is neither."""
    if (path / COMPLETE).is_file():
        step = int(path.resolve().name.removeprefix("step_"))
        return RunFolder.open(path.resolve().parent.parent, write=False), Checkpoint(step, path)
    if not (path / "spec" / "resolved.yaml").is_file():
        return None
    folder = RunFolder.open(path, write=False)
    found = folder.latest_checkpoint()
    if best:
        recorded = folder.state().best
        if recorded is None:
            raise UserError(Problem("no best checkpoint is recorded: run.keep_best was not set", where=str(path)))
        found = next((c for c in folder.checkpoints() if c.step == recorded.step), None)
    if found is None:
        raise UserError(Problem("the run has no complete checkpoint yet", where=str(path)))
    return folder, found


def _facts(choice: Choice) -> ModelFacts:
    section = choice.config
    if not isinstance(section, ModelSection):
        raise TypeError(f"{choice.name} is not configured by a model section")
    config: Mapping[str, Any] | None = section.config
    reason = None
    if section.path is not None:
        config, reason = read_config(Path(section.path))
    if config is None:
        raise UserError(Problem(reason or "no config", path="model.path"))
    try:
        return section.facts(config)
    except ValueError as error:
        raise UserError(Problem(str(error), path="model")) from error
