"""What core itself offers, declared through the same hooks as any plugin."""

from __future__ import annotations

from collections.abc import Iterable

from dare_core.components import Component
from dare_core.hookspecs import hookimpl


@hookimpl
def dare_datasets() -> Iterable[Component]:
    """Readers of local files."""
    return [
        Component(
            kind="jsonl",
            target="dare_core.data.jsonl:JsonLines",
            config="dare_core.data.config:JsonLinesSection",
            summary="JSON lines, plain or gzip (.jsonl, .jsonl.gz)",
        ),
        Component(
            kind="parquet",
            target="dare_core.data.parquet:Parquet",
            config="dare_core.data.config:ParquetSection",
            summary="Parquet files",
            requires=("pyarrow",),
        ),
        Component(
            kind="datasets",
            target="dare_core.data.folders:DatasetsFolder",
            config="dare_core.data.config:DatasetsSection",
            summary="folders saved by the datasets library",
            requires=("datasets",),
        ),
    ]


#: text is judged the same whether it is a guess or an answer
_GUESSES = frozenset({"prefix"})


@hookimpl
def dare_rewards() -> Iterable[Component]:
    """Rewards without task knowledge."""
    return [
        Component(
            kind="match",
            target="dare_core.rewards.match:Match",
            config="dare_core.rewards.config:MatchSection",
            summary="extract by a rule, compare with the reference as text or number",
            provides=_GUESSES,
        ),
        Component(
            kind="python",
            target="dare_core.rewards.python:PythonReward",
            config="dare_core.rewards.config:PythonSection",
            summary="a callable of yours, named by its dotted path",
            provides=_GUESSES,
        ),
        Component(
            kind="sum",
            target="dare_core.rewards.sum:SumReward",
            config="dare_core.rewards.config:SumSection",
            summary="weighted sum of other rewards",
            provides=_GUESSES,
        ),
    ]


@hookimpl
def dare_rollout_backends() -> Iterable[Component]:
    """The reference decoder."""
    return [
        Component(
            kind="native",
            target="dare_core.rollout.native:NativeBackend",
            config="dare_core.rollout.config:NativeSection",
            summary="decodes with the live model, exactly",
            requires=("torch",),
            provides=frozenset(
                {"sampling", "logp", "commit-step", "snapshots", "tree", "mixture", "weight-sync", "adapters"}
            ),
        )
    ]


@hookimpl
def dare_engines() -> Iterable[Component]:
    """The reference engine."""
    return [
        Component(
            kind="local",
            target="dare_core.engine.local:LocalEngine",
            config="dare_core.engine.config:LocalSection",
            summary="one process, one device",
            requires=("torch",),
        )
    ]


@hookimpl
def dare_evaluators() -> Iterable[Component]:
    """Held-out reward and likelihood."""
    return [
        Component(
            kind="held-out",
            target="dare_core.loops.heldout:HeldOut",
            config="dare_core.loops.config:HeldOutSection",
            summary="the run's reward on rows that are not trained on",
            requires=("torch",),
        ),
        Component(
            kind="nelbo",
            target="dare_core.loops.nelbo:Nelbo",
            config="dare_core.loops.config:NelboSection",
            summary="the negative ELBO of answers that are not trained on",
            requires=("torch",),
            needs=frozenset({"token-logp"}),
        ),
    ]
