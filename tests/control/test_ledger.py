"""The ledger and one step's metrics."""

from __future__ import annotations

import json
import math

import pytest

from dare_core.run.ledger import PHASES, Ledger
from dare_core.run.metrics import MetricLog, metrics_line
from dare_core.types.estimate import Metric


def test_counters_add_up_and_memory_keeps_the_highest_level() -> None:
    ledger = Ledger()
    ledger.count(forwards=2, forward_tokens=30, peak_memory=500)
    ledger.count(forwards=1, backward_tokens=7, generated_tokens=5, peak_memory=200)
    assert (ledger.forwards, ledger.forward_tokens, ledger.backward_tokens, ledger.generated_tokens) == (3, 30, 7, 5)
    assert ledger.peak_memory == 500


def test_a_ledger_survives_json_and_sums_with_what_a_resumed_run_adds() -> None:
    before = Ledger(forwards=4, seconds=dict.fromkeys(PHASES, 1.25), peak_memory=10)
    after = Ledger(forwards=6, seconds=dict.fromkeys(PHASES, 0.5), peak_memory=7)
    restored = Ledger.from_json(json.loads(json.dumps(before.to_json())))
    assert restored == before
    total = restored + after
    assert (total.forwards, total.seconds["score"], total.peak_memory) == (10, 1.75, 10)


def test_seconds_are_counted_even_when_the_phase_fails() -> None:
    ledger = Ledger()
    with pytest.raises(RuntimeError), ledger.timed("reward"):
        raise RuntimeError
    assert ledger.seconds["reward"] > 0
    assert ledger.seconds["rollout"] == 0


def test_metrics_of_parts_give_the_metric_of_the_whole() -> None:
    log = MetricLog()
    log.add({"clip": Metric(1.0, 4.0)}, prefix="loss/")
    log.add({"clip": Metric(2.0, 2.0)}, prefix="loss/")
    log.put({"lr": 1e-5})
    assert log.values() == {"loss/clip": 0.5, "lr": 1e-5}


def test_one_name_cannot_be_both_a_sum_and_a_number() -> None:
    log = MetricLog()
    log.put({"kl": 0.1})
    with pytest.raises(ValueError, match="'kl' is given both"):
        log.add({"kl": Metric(1.0, 1.0)})


def test_a_metrics_line_is_strict_json_with_null_for_what_is_not_finite() -> None:
    line = metrics_line(3, {"a": math.nan, "b": -math.inf, "c": 0.1})
    assert json.loads(line, parse_constant=pytest.fail) == {"step": 3, "a": None, "b": None, "c": 0.1}
