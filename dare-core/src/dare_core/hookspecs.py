"""The hooks of plugin API 1 (entry-point group ``dare.v1``).

Hooks declare and observe; typed classes compute. No hook may change a value. Arguments are only ever
added within an API major version, never renamed or removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pluggy

from dare_core.components import Component, Slot
from dare_core.errors import Problem

if TYPE_CHECKING:
    from dare_core.spec.plan import RunPlan
    from dare_core.types.events import CheckpointSaved, RunFinished, RunStarted, StepFinished

ENTRY_POINT_GROUP = "dare.v1"
hookspec = pluggy.HookspecMarker("dare")
hookimpl = pluggy.HookimplMarker("dare")

#: hooks that declare components -> the slot of what they return
DECLARATIONS: Mapping[str, Slot] = MappingProxyType(
    {
        "dare_model_adapters": Slot.MODEL,
        "dare_rollout_backends": Slot.ROLLOUT,
        "dare_likelihood_estimators": Slot.LIKELIHOOD,
        "dare_algorithms": Slot.ALGORITHM,
        "dare_evaluators": Slot.EVALUATOR,
        "dare_rewards": Slot.REWARD,
        "dare_datasets": Slot.DATA,
        "dare_engines": Slot.ENGINE,
        "dare_trackers": Slot.TRACKER,
        "dare_commands": Slot.COMMAND,
    }
)
#: hooks that are told what happens
OBSERVERS = ("dare_run_started", "dare_step_finished", "dare_checkpoint_saved", "dare_run_finished")


@hookspec
def dare_model_adapters() -> Iterable[Component]:  # type: ignore[empty-body]
    """Model families. Targets implement :class:`dare_core.interfaces.ModelAdapter`."""


@hookspec
def dare_rollout_backends() -> Iterable[Component]:  # type: ignore[empty-body]
    """Generators of rollouts. Targets implement :class:`dare_core.interfaces.RolloutBackend`."""


@hookspec
def dare_likelihood_estimators() -> Iterable[Component]:  # type: ignore[empty-body]
    """Likelihood estimators. Targets implement :class:`dare_core.interfaces.LikelihoodEstimator`."""


@hookspec
def dare_algorithms() -> Iterable[Component]:  # type: ignore[empty-body]
    """Training algorithms. Targets implement :class:`dare_core.interfaces.Algorithm`."""


@hookspec
def dare_evaluators() -> Iterable[Component]:  # type: ignore[empty-body]
    """Evaluation. Targets implement :class:`dare_core.interfaces.Evaluator`."""


@hookspec
def dare_rewards() -> Iterable[Component]:  # type: ignore[empty-body]
    """Rewards and verifiers. Targets implement :class:`dare_core.interfaces.Reward`."""


@hookspec
def dare_datasets() -> Iterable[Component]:  # type: ignore[empty-body]
    """Readers of rows. Targets implement :class:`dare_core.interfaces.DataSource`."""


@hookspec
def dare_engines() -> Iterable[Component]:  # type: ignore[empty-body]
    """Training engines. Targets implement :class:`dare_core.interfaces.Engine`."""


@hookspec
def dare_trackers() -> Iterable[Component]:  # type: ignore[empty-body]
    """Receivers of metrics. Targets implement :class:`dare_core.interfaces.Tracker`."""


@hookspec
def dare_commands() -> Iterable[Component]:  # type: ignore[empty-body]
    """Further ``dare`` subcommands. Targets are callables that take the list of arguments and return an exit code."""


@hookspec(firstresult=True)
def dare_detect_model(config: Mapping[str, Any]) -> str | None:
    """The model kind that a published folder's parsed ``config.json`` belongs to, or None. First answer wins."""


@hookspec
def dare_check_run(plan: RunPlan) -> Iterable[Problem]:  # type: ignore[empty-body]
    """Problems of a resolved run that only this plugin can see. Called by ``validate`` and before every run."""


@hookspec
def dare_run_started(event: RunStarted) -> None:
    """A run begins or resumes."""


@hookspec
def dare_step_finished(event: StepFinished) -> None:
    """An optimizer step is done and its metrics are written."""


@hookspec
def dare_checkpoint_saved(event: CheckpointSaved) -> None:
    """A checkpoint is complete on disk."""


@hookspec
def dare_run_finished(event: RunFinished) -> None:
    """A run ends: finished, interrupted or failed."""
