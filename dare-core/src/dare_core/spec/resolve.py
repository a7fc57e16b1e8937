"""Spec files -> a validated run plan, or every problem at once.

Stages: parse, merge files and ``--set`` values, choose components, lay their presets and wishes below, validate each
section by its owner, check sections against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dare_core.api import SectionConfig
from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.errors import Problem, UserError
from dare_core.spec.checks import check_draft
from dare_core.spec.draft import Draft
from dare_core.spec.dump import origins_of, resolved_data
from dare_core.spec.layers import SINGLE_SLOTS
from dare_core.spec.merge import merged, with_kinds_spelled_out, with_sets
from dare_core.spec.nodes import Node, described, node_of, read_file
from dare_core.spec.options import OptionReader
from dare_core.spec.plan import Choice, Origin, RunPlan
from dare_core.spec.problems import did_you_mean, in_file_order
from dare_core.spec.sections import OptimSection, PeftSection, RunSection
from dare_core.spec.selection import Selection, missing_kind, report_components, select

SPEC_VERSION = 1
CORE_SECTIONS: Mapping[str, type[SectionConfig]] = {"run": RunSection, "optim": OptimSection, "peft": PeftSection}
SECTIONS = (
    "dare",
    "run",
    "model",
    "data",
    "rollout",
    "reward",
    "likelihood",
    "algorithm",
    "engine",
    "optim",
    "peft",
    "eval",
    "trackers",
)
#: slots that only the online loop and evaluations use
_ONLINE_SLOTS = (Slot.ROLLOUT, Slot.REWARD)


def resolve_spec(paths: Sequence[Path], sets: Sequence[str], catalog: Catalog) -> RunPlan:
    """The run that spec files describe.

    Args:
        paths: the spec, then overlays; later ones win.
        sets: ``path=value`` from the command line; they win over files.
        catalog: installed components.

    Raises:
        UserError: anything is wrong; carries every problem found, in file order.
    """
    files = [str(path) for path in paths]
    roots: list[Node] = []
    problems: list[Problem] = []
    for index, path in enumerate(paths):
        root, found = read_file(path, "overlay" if index else "spec")
        problems += found
        if root is not None:
            roots.append(with_kinds_spelled_out(root))
    if len(roots) < len(paths) or not roots:
        raise UserError(in_file_order(problems or [Problem("no spec file was given")], files))
    user = roots[0]
    for root in roots[1:]:
        user = merged(user, root)
    user, found = with_sets(user, sets)
    return _resolve(user, catalog, files, problems + found)


def plan_from_resolved(resolved: Mapping[str, Any], catalog: Catalog) -> RunPlan:
    """The plan of a run folder's ``spec/resolved.yaml``, as parsed data. Raises like :func:`resolve_spec`."""
    root = node_of(resolved, Origin(source="spec"))
    return _resolve(with_kinds_spelled_out(root), catalog, [], [])


def _resolve(user: Node, catalog: Catalog, files: Sequence[str], problems: list[Problem]) -> RunPlan:
    problems = [*problems, *_check_top_level(user)]
    user = Node({name: _without_null_kind(node) for name, node in user.entries.items()}, user.origin)
    selection = select(user, catalog, SECTIONS)
    settled = selection.kinds.keys() == selection.picked.keys() and Slot.ALGORITHM in selection.picked
    reader = OptionReader(catalog, _keys_elsewhere(selection), problems, settled=settled)
    draft = _draft(selection, user, reader)
    facts, found = check_draft(draft, catalog)
    problems += found
    if problems or draft.run is None or draft.optim is None:
        raise UserError(in_file_order(problems, files))
    plan = RunPlan(
        run=draft.run,
        optim=draft.optim,
        peft=draft.peft,
        choices=draft.choices,
        evals=draft.evals,
        trackers=draft.trackers,
        facts=facts,
    )
    plan = replace(plan, resolved=resolved_data(plan))
    plan = replace(plan, origins=origins_of(plan.resolved, selection, reader.filled))
    problems += [_placed(problem, draft) for problem in catalog.check_run(plan)]
    if problems:
        raise UserError(in_file_order(problems, files))
    return plan


def _draft(selection: Selection, user: Node, reader: OptionReader) -> Draft:
    """Every section validated by its owner, as far as it can be; problems are left with the reader."""
    report_components(selection, user, reader)
    run, optim, peft = (_core_section(name, selection.root, user, reader) for name in CORE_SECTIONS)
    evals = _items(Slot.EVALUATOR, user, reader)
    trackers = _items(Slot.TRACKER, user, reader)
    choices = _choices(selection, user, bool(_listed(Slot.EVALUATOR, user)), reader)
    return Draft(
        root=selection.root,
        used=tuple(reader.used),
        choices=choices,
        run=run if isinstance(run, RunSection) else None,
        optim=optim if isinstance(optim, OptimSection) else None,
        peft=peft if isinstance(peft, PeftSection) else None,
        evals=evals,
        trackers=trackers,
    )


def _placed(problem: Problem, draft: Draft) -> Problem:
    """A plugin's problem, at the place of the path it names."""
    if problem.where is not None or problem.path is None:
        return problem
    return replace(problem, where=draft.place(problem.path))


def _check_top_level(user: Node) -> list[Problem]:
    """Names of sections, and the version of the spec's form."""
    problems = [
        Problem("unknown section", name, node.where, did_you_mean(name, SECTIONS, what="sections"))
        for name, node in user.entries.items()
        if name not in SECTIONS and not name.startswith("x-")
    ]
    version = user.entries.get("dare")
    if version is None:
        problems.append(Problem("missing key", "dare", user.where, f"write 'dare: {SPEC_VERSION}' at the top"))
    elif version.value != SPEC_VERSION or isinstance(version.value, (bool, float)):
        message = f"must be {SPEC_VERSION}, the only version of specs there is, not {described(version)}"
        problems.append(Problem(message, "dare", version.where))
    return problems


def _without_null_kind(section: Node) -> Node:
    if "kind" not in section.entries or section.entries["kind"].value is not None:
        return section
    return Node({key: node for key, node in section.entries.items() if key != "kind"}, section.origin)


def _keys_elsewhere(selection: Selection) -> dict[str, list[str]]:
    """Option -> the sections that have it."""
    homes: dict[str, list[str]] = {}
    for name, model in {**CORE_SECTIONS, **selection.models}.items():
        for key in model.model_fields:
            homes.setdefault(key, []).append(name)
    return homes


def _core_section(name: str, root: Node, user: Node, reader: OptionReader) -> SectionConfig | None:
    model = CORE_SECTIONS[name]
    node = root.entries.get(name)
    if node is None or node.value is None:
        if name == "run" or (name == "optim" and reader.settled):
            required = ", ".join(key for key, info in model.model_fields.items() if info.is_required())
            where = node.where if node is not None else user.where
            reader.problems.append(Problem("missing section", name, where, f"it needs {required}"))
        return None
    return reader.read(node, model, name, name, component=False)


def _choices(selection: Selection, user: Node, evaluates: bool, reader: OptionReader) -> dict[Slot, Choice]:
    choices: dict[Slot, Choice] = {}
    for slot in SINGLE_SLOTS:
        name = str(slot)
        node = selection.root.entries.get(name)
        written = user.entries.get(name)
        absent = written is None or written.value is None
        if slot in _ONLINE_SLOTS and selection.learns_offline:
            if absent:
                continue
            if not evaluates:
                algorithm = selection.kinds[Slot.ALGORITHM].value
                message = f"algorithm '{algorithm}' learns without rollouts and 'eval' is empty, so nothing uses this"
                reader.problems.append(Problem(message, name, node.where if node else None, "remove the section"))
        if slot in _ONLINE_SLOTS and absent and Slot.ALGORITHM not in selection.picked:
            continue
        kind, registered = selection.kinds.get(slot), selection.picked.get(slot)
        if node is None:
            node = Node({}, user.origin)
        if node.value is not None and not isinstance(node.value, Mapping):
            message = f"must be a kind or a mapping with 'kind' and options, not {described(node)}"
            reader.problems.append(Problem(message, name, node.where))
        elif kind is None:
            if not (slot is Slot.LIKELIHOOD and absent and Slot.ALGORITHM not in selection.picked):
                reader.problems.append(missing_kind(slot, node, user, reader.catalog))
        elif registered is not None:
            choice = reader.choice(slot, registered, kind, node, name)
            if choice is not None:
                choices[slot] = choice
    return choices


def _listed(slot: Slot, user: Node) -> list[tuple[str, Node]]:
    """(path, node) of each item of ``eval`` or ``trackers``."""
    name = str(slot)
    node = user.entries.get(name)
    if node is None or node.value is None:
        return []
    if isinstance(node.value, tuple):
        return [(f"{name}.{index}", item) for index, item in enumerate(node.value)]
    return [(name, node)]


def _items(slot: Slot, user: Node, reader: OptionReader) -> tuple[Choice, ...]:
    found = [reader.item(slot, node, path) for path, node in _listed(slot, user)]
    return tuple(choice for choice in found if choice is not None)
