"""``dare validate``: check a spec without loading a model."""

from __future__ import annotations

import sys

from dare_core.cli.context import emit
from dare_core.cli.spec_arguments import AsJson, Overlays, Sets, SpecFile, resolved_plan
from dare_core.components import Slot
from dare_core.spec.plan import RunPlan
from dare_core.spec.sections import DataSection, ModelSection


def validate(spec: SpecFile, overlay: Overlays = [], sets: Sets = [], as_json: AsJson = False) -> int:  # noqa: B006
    """Check a spec: keys, types, files, and what works together. Exit code 2 lists every problem."""
    plan = resolved_plan(spec, overlay, sets)
    if as_json:
        emit({"ok": True, "summary": summary(plan)})
    else:
        sys.stdout.write(f"ok: {summary(plan)}\n")
    return 0


def summary(plan: RunPlan) -> str:
    """One line that tells what the run is."""
    model, data = plan[Slot.MODEL], plan[Slot.DATA]
    source = model.config.path if isinstance(model.config, ModelSection) else None
    rows = data.config.path if isinstance(data.config, DataSection) else ""
    parts = [f"{plan[Slot.ALGORITHM].name} on {model.name} ({source or 'random weights'})", f"{data.name} {rows}"]
    if plan.online:
        parts.append(f"{plan[Slot.ROLLOUT].name} rollouts judged by {plan[Slot.REWARD].name}")
    parts.append(f"{plan.run.steps} steps with batches of {plan.optim.batch_size}")
    parts.append("full training" if plan.peft is None else f"{plan.peft.kind} r={plan.peft.r}")
    return ", ".join(parts)
