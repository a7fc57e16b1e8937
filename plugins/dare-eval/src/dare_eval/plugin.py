"""What this distribution declares."""

from __future__ import annotations

from collections.abc import Iterable

from dare_core.api import Component, hookimpl

#: text is judged the same whether it is a guess or an answer
_GUESSES = frozenset({"prefix"})


@hookimpl
def dare_rewards() -> Iterable[Component]:
    """Verifiers of tasks."""
    return [
        Component(
            kind="gsm8k",
            target="dare_eval.gsm8k:Gsm8kReward",
            config="dare_eval.config:Gsm8kSection",
            summary="word problems with a number as the answer",
            provides=_GUESSES,
        ),
        Component(
            kind="math",
            target="dare_eval.math_reward:MathReward",
            config="dare_eval.config:MathSection",
            summary="mathematical equality, in worker processes with a time limit",
            provides=_GUESSES,
            requires=("math_verify", "sympy"),
        ),
        Component(
            kind="countdown",
            target="dare_eval.countdown:CountdownReward",
            config="dare_eval.config:CountdownSection",
            summary="an expression over given numbers that reaches a target",
            provides=_GUESSES,
        ),
        Component(
            kind="sudoku",
            target="dare_eval.sudoku:SudokuReward",
            config="dare_eval.config:SudokuSection",
            summary="4x4 Sudoku grids",
            provides=_GUESSES,
        ),
        Component(
            kind="code",
            target="dare_eval.code_reward:CodeReward",
            config="dare_eval.config:CodeRewardSection",
            summary="programs that pass tests, and their form",
        ),
    ]


@hookimpl
def dare_evaluators() -> Iterable[Component]:
    """Benchmarks."""
    return [
        Component(
            kind="task",
            target="dare_eval.task_evaluator:TaskEvaluator",
            config="dare_eval.config:TaskSection",
            summary="a benchmark by name, or a yaml file of yours",
            requires=("torch", "math_verify", "sympy"),
        ),
        Component(
            kind="lm-eval",
            target="dare_eval.harness.evaluator:HarnessEvaluator",
            config="dare_eval.config:HarnessSection",
            summary="tasks of lm-evaluation-harness, in process",
            requires=("torch", "lm_eval"),
            stability="beta",
        ),
    ]
