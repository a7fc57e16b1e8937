"""What this distribution declares."""

from __future__ import annotations

from collections.abc import Iterable

from dare_core.api import Component, hookimpl


@hookimpl
def dare_evaluators() -> Iterable[Component]:
    """Benchmarks of OpenCompass."""
    return [
        Component(
            kind="opencompass",
            target="dare_eval_opencompass.evaluator:OpenCompassEvaluator",
            config="dare_eval_opencompass.config:OpenCompassSection",
            summary="benchmarks of OpenCompass, in its own environment",
            requires=("torch", "yaml"),
            stability="beta",
        ),
    ]


@hookimpl
def dare_commands() -> Iterable[Component]:
    """Making that environment."""
    return [
        Component(
            kind="eval-setup-opencompass",
            target="dare_eval_opencompass.environment:setup_command",
            config="",
            summary="Make the environment that OpenCompass runs in.",
        ),
    ]
