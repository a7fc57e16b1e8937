"""Peak memory of one update against the number of views, two-pass and one-pass.

Each cell runs in a process of its own on the CPU and reports how far its resident memory rose above what model,
optimizer and one warm-up update hold. Two passes stay flat; one pass grows with the views.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from dare_algos_elbo.config import SftSection
from dare_algos_elbo.estimators.bernoulli import Bernoulli
from dare_algos_elbo.estimators.config import BernoulliSection
from dare_algos_elbo.sft import Sft
from dare_core.engine.config import LocalSection
from dare_core.engine.local import LocalEngine
from dare_core.interfaces import EngineInputs, Objective, PlanContext
from dare_core.loops.update import update
from dare_core.spec.sections import OptimSection
from dare_core.types import Address, Progress, Rows
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import tiny_config, write_llada_tokenizer

VIEWS = (1, 8, 64)
ROW_TOKENS = 128
MODES = {"two-pass": 256, "one-pass": 1_000_000}
TARGET_MIB = 64


def measure(views: int, mode: str) -> float:
    """MiB above the level before the update, in this process."""
    torch.set_num_threads(1)
    engine = engine_on_llada(MODES[mode])
    how = "two-pass" if mode == "two-pass" else "direct"
    update(engine, objective_of(engine, 1), how)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    update(engine, objective_of(engine, views), how)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def engine_on_llada(budget: int) -> LocalEngine:
    """A fresh LLaDA of a million parameters behind an engine with this token budget."""
    sizes = {"d_model": 128, "n_layers": 4, "n_heads": 4, "mlp_hidden_size": 384, "max_sequence_length": ROW_TOKENS}
    with tempfile.TemporaryDirectory() as folder:
        write_llada_tokenizer(Path(folder))
        section = LladaSection(config=tiny_config(**sizes), init="random", tokenizer=folder)
        adapter = LladaAdapter.load(section, device=torch.device("cpu"), dtype=torch.float32)
    optim = OptimSection(batch_size=1)
    inputs = EngineInputs(adapter=adapter, optim=optim, peft=None, total_updates=10, keep_reference=False, seed=0)
    return LocalEngine(LocalSection(tokens_per_microbatch=budget), inputs)


def objective_of(engine: LocalEngine, count: int) -> Objective:
    """SFT on ``count`` rows, one view each."""
    column = torch.arange(ROW_TOKENS).expand(count, -1)
    rows = Rows(
        tokens=column % 200,
        prompt=column < 32,
        response=column >= 32,
        completion=column >= 32,
        sample_id=torch.arange(count),
        group=torch.arange(count),
        example_id=tuple(map(str, range(count))),
    )
    estimator, facts = Bernoulli(BernoulliSection()), engine.adapter.facts
    views = estimator.plan(rows, PlanContext(facts=facts, address=Address(0, "corruption"), layout=facts.layout))
    algorithm = Sft(SftSection())
    return Objective(estimator=estimator, algorithm=algorithm, rows=rows, views=views, progress=Progress(0, 1))


def main() -> int:
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), sys.argv[2])))
        return 0
    found: dict[str, list[float]] = {}
    for mode in MODES:
        found[mode] = []
        for views in VIEWS:
            output = subprocess.run(
                [sys.executable, __file__, str(views), mode], capture_output=True, text=True, check=True
            )
            found[mode].append(float(output.stdout))
    print(f"MiB above the level before the update, views of {ROW_TOKENS} tokens")
    print("views     " + "".join(f"{views:>10}" for views in VIEWS))
    for mode, values in found.items():
        print(f"{mode:<10}" + "".join(f"{value:>10.1f}" for value in values))
    flat = found["two-pass"][-1] <= TARGET_MIB
    print(f"target: two-pass at {VIEWS[-1]} views stays below {TARGET_MIB} MiB: {'met' if flat else 'missed'}")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
