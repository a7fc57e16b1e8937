"""Loading holds the weights once: the benchmark's measurement, on a small folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loading.py"


def test_peak_memory_while_loading_is_at_most_a_fifth_above_the_weights(tmp_path):
    spec = importlib.util.spec_from_file_location("loading", SCRIPT)
    loading = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loading)
    loading.generate(tmp_path, 0.15, 8, width=512)
    run = loading.measured(tmp_path, "bfloat16")
    assert len(list(tmp_path.glob("*.safetensors"))) == 8
    assert run["bytes"] > 0.14e9
    assert run["anonymous"] <= 1.2
