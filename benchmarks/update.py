"""The update against plain trainers: ``python benchmarks/update.py [--what speed memory draws] [--models ...] ...``.

Eight rows with answers of 32 to 256 tokens after prompts of 32 to 96, float32, fresh weights, the two models of
``rollout.py``. *Speed*: BGPO on several draws per row, one-pass and two-pass, and SFT on one draw, each with its
optimizer step, against ``plain_update.py``; a plain draw stands for all, since each costs the same. Beside each ratio
stands the counted one, of multiplications alone. ``matmul`` is the rate of the needed multiplications (the head at
scored positions, nothing computed twice) as a share of the rate of the same matrix products alone. *Memory*: how far
the resident memory rises above weights, gradients and optimizer while the gradient of one view per row is gathered, in
a process per cell. *Draws*: the same for every algorithm on a small model, at 1, 8 and 64 draws (``update_draws.py``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from plain_update import WAYS
from rollout import CLOCKS, MLP_FACTOR, SHAPES, llada, text, threads
from update_draws import draws_report, memory_above

from dare_algos_elbo.bgpo import Bgpo
from dare_algos_elbo.config import BgpoSection, SftSection
from dare_algos_elbo.estimators.bernoulli import Bernoulli
from dare_algos_elbo.estimators.config import BernoulliSection, CountStratifiedSection
from dare_algos_elbo.estimators.count_stratified import CountStratified
from dare_algos_elbo.sft import Sft
from dare_core.engine.config import LocalSection
from dare_core.engine.local import LocalEngine
from dare_core.interfaces import EngineInputs, Objective, PlanContext
from dare_core.loops.update import direct_parts, update
from dare_core.spec.sections import OptimSection
from dare_core.types import Address, Advantages, Progress, Rows, Views

clock = CLOCKS["wall"]
ANSWERS = torch.linspace(32, 256, 8).long()
PROMPTS = torch.linspace(32, 96, 8).long()[torch.tensor([3, 6, 0, 5, 2, 7, 1, 4])]
MODES = ("direct", "two-pass", "sft")
#: at least so many times as fast as a plain way, and at most this share of the padded one's memory
FLOORS = {
    ("head-heavy", "direct"): {"padded": 3.5, "packed": 3.0},
    ("head-heavy", "two-pass"): {"packed": 2.6},
    ("head-heavy", "sft"): {"padded": 3.3},
    ("backbone-heavy", "direct"): {"padded": 1.6, "packed": 1.0},
    ("backbone-heavy", "two-pass"): {},
    ("backbone-heavy", "sft"): {"padded": 1.45},
}
MEMORY_FLOORS = {"head-heavy": 0.2, "backbone-heavy": 0.4}
#: tokens per micro-batch, unless asked otherwise; the longest row has 352
BUDGET = 768


def engine_on(shape: str, budget: int) -> LocalEngine:
    """A fresh model behind an engine with this token budget."""
    adapter = llada(shape, torch.float32)
    optim = OptimSection(batch_size=len(ANSWERS), lr=1e-5)
    inputs = EngineInputs(adapter=adapter, optim=optim, peft=None, total_updates=10, keep_reference=False, seed=0)
    return LocalEngine(LocalSection(tokens_per_microbatch=budget), inputs)


def rows_of(vocabulary: int) -> Rows:
    count, width = len(ANSWERS), int((PROMPTS + ANSWERS).max())
    column = torch.arange(width).expand(count, -1)
    prompt = column < PROMPTS[:, None]
    response = ~prompt & (column < (PROMPTS + ANSWERS)[:, None])
    tokens = torch.randint(0, vocabulary - 1000, (count, width), generator=torch.Generator().manual_seed(0))
    return Rows(
        tokens=tokens * (prompt | response),
        prompt=prompt,
        response=response,
        completion=response,
        sample_id=torch.arange(count),
        group=torch.arange(count) // 4,
        example_id=tuple(map(str, range(count))),
    )


def objective_of(engine: LocalEngine, mode: str, draws: int = 1) -> Objective:
    """BGPO, or SFT."""
    facts = engine.adapter.facts
    rows = rows_of(facts.vocab_size)
    estimator: Any
    algorithm: Any
    if mode == "sft":
        estimator, algorithm = Bernoulli(BernoulliSection(draws=draws)), Sft(SftSection())
    else:
        estimator = CountStratified(CountStratifiedSection(draws=draws, per="view"))
        algorithm = Bgpo(BgpoSection())
    context = PlanContext(facts=facts, address=Address(0, "corruption"), layout=facts.layout)
    value = torch.linspace(-1, 1, len(rows))
    return Objective(
        estimator=estimator,
        algorithm=algorithm,
        rows=rows,
        views=estimator.plan(rows, context),
        progress=Progress(0, 1),
        advantages=Advantages(value=value, usable=torch.ones_like(value, dtype=torch.bool)),
    )


def timed(run: Callable[[], Any]) -> float:
    start = clock()
    run()
    return clock() - start


def speed(shape: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    engine = engine_on(shape, options.budget)
    module = engine.adapter.module
    sft = objective_of(engine, "sft")
    # Not measured: what a process does for the first time, the optimizer's state among it.
    for gather in WAYS.values():
        gather(module, sft.views.take(torch.tensor([0])))
    engine.step()
    views: dict[str, Views] = {}
    draws = {mode: 1 if mode == "sft" else options.draws for mode in options.modes}
    plain = dict.fromkeys(WAYS, float("inf"))
    ours = dict.fromkeys(draws, float("inf"))
    step = float("inf")
    for _ in range(options.repeat):
        for mode, count in draws.items():
            how = "two-pass" if mode == "two-pass" else "direct"
            objective = objective_of(engine, mode, count)
            views[mode] = objective.views
            ours[mode] = min(ours[mode], timed(lambda of=objective, how=how: update(engine, of, how)))
        for name, gather in WAYS.items():
            plain[name] = min(plain[name], timed(lambda gather=gather: gather(module, sft.views)))
            step = min(step, timed(engine.step))
    for mode, count in draws.items():
        row: dict[str, Any] = {"model": shape, "update": mode, "s": ours[mode]}
        for name, seconds in plain.items():
            row[name] = (count * seconds + step) / ours[mode]
            row[f"{name}_counted"] = counted(shape, name, sft.views) * count / counted(shape, mode, views[mode])
            row[f"{name}_floor"] = FLOORS[shape, mode].get(name)
        if mode == "direct":
            rate = products_rate(shape, views[mode], count, options.repeat)
            row["matmul"] = counted(shape, mode, views[mode]) / (ours[mode] - step) / rate
        yield row


def counted(shape: str, way: str, views: Views) -> float:
    """Multiplications of the matrix products and of attention, forward and backward."""
    width, layers, vocabulary = SHAPES[shape]
    lengths = views.valid.sum(dim=1)
    if way == "padded":
        lengths = torch.full_like(lengths, int(lengths.max()))
    tokens, mlp = int(lengths.sum()), 3 * MLP_FACTOR * width**2
    scored = tokens if way in WAYS else int(views.scored.sum())
    # The last layer ends where states are read.
    backbone = tokens * layers * (4 * width**2 + mlp) - (tokens - scored) * mlp
    attention = 2 * layers * width * int((lengths**2).sum())
    passes = 4.0 if way == "two-pass" else 3.0
    return passes * (backbone + attention + scored * width * vocabulary)


def products_rate(shape: str, views: Views, draws: int, repeat: int) -> float:
    """Multiplications per second of the matrix products of one draw, forward and backward."""
    width, layers, vocabulary = SHAPES[shape]
    tokens, scored = int(views.valid.sum()) // draws, int(views.scored.sum()) // draws
    wide = MLP_FACTOR * width
    shapes = [(tokens, width, width, 4 * layers), (tokens, width, wide, 3 * layers), (scored, width, vocabulary, 1)]
    best, count = float("inf"), 0.0
    for number in range(repeat):
        spent = 0.0
        for rows, inner, outer, times in shapes:
            x, w, y = torch.randn(rows, inner), torch.randn(outer, inner), torch.randn(rows, outer)
            few = min(times, 12)

            def run(x: Any = x, w: Any = w, y: Any = y, few: int = few) -> None:
                for _ in range(few):
                    x @ w.t()
                    y @ w
                    y.t() @ x

            spent += timed(run) * times / few
            count += 0 if number else 3.0 * times * rows * inner * outer
        best = min(best, spent)
    return count / best


def memory_cell(shape: str, way: str) -> float:
    """MiB above weights, gradients and optimizer, in this process. ``parts``: as ``direct``, in micro-batches."""
    engine = engine_on(shape, BUDGET if way == "parts" else 1 << 20)
    module = engine.adapter.module
    update(engine, objective_of(engine, "sft"), "two-pass")
    for parameter in module.parameters():
        # Written, so that it is resident.
        parameter.grad = torch.full_like(parameter, 1e-30)
    objective = objective_of(engine, "sft")
    parts = direct_parts(engine, objective, "direct")
    assert parts is not None
    ways: dict[str, Callable[[], Any]] = {
        **{name: lambda gather=gather: gather(module, objective.views) for name, gather in WAYS.items()},
        "direct": lambda: engine.accumulate_direct(objective.views, objective, parts),
        "parts": lambda: engine.accumulate_direct(objective.views, objective, parts),
    }
    return memory_above(ways[way])


def memory(shape: str) -> dict[str, Any]:
    row: dict[str, Any] = {"model": shape}
    for way in (*WAYS, "direct", "parts"):
        command = [sys.executable, __file__, "--cell", shape, way]
        row[f"{way}_mib"] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    row |= {f"{way}_share_of_padded": row[f"{way}_mib"] / row["padded_mib"] for way in ("direct", "parts")}
    row["floor"] = MEMORY_FLOORS[shape]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="*", default=["speed", "memory", "draws"], choices=["speed", "memory", "draws"])
    parser.add_argument("--models", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu: for a busy machine, one thread")
    parser.add_argument("--budget", type=int, default=BUDGET, help="tokens per micro-batch")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--cell", nargs=2, help="one measurement of memory: a model, and how")
    options = parser.parse_args()
    global clock
    clock = CLOCKS[options.clock]
    with threads(options.threads):
        if options.cell:
            print(memory_cell(*options.cell))
            return
        for row in rows(options):
            print(json.dumps(row) if options.json else text(row), flush=True)


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for shape in options.models:
        if "speed" in options.what:
            yield from speed(shape, options)
        if "memory" in options.what:
            yield memory(shape)
    if "draws" in options.what:
        yield from draws_report()


if __name__ == "__main__":
    main()
