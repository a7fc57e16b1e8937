"""Peak memory of a two-pass update against the number of Monte-Carlo draws, for ``update.py``: every algorithm.

Also how far its gradient is from the one-pass gradient, in float64, as a share of the latter's norm.
"""

from __future__ import annotations

import ctypes
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.engine.config import LocalSection
from dare_core.engine.local import LocalEngine
from dare_core.interfaces import EngineInputs, Objective, PlanContext
from dare_core.loops.update import update
from dare_core.spec.sections import OptimSection
from dare_core.types import Address, Advantages, PairRows, Progress
from dare_llada.adapter import LladaAdapter
from dare_llada.config import LladaSection
from dare_llada.testing import tiny_config, write_llada_tokenizer

#: algorithm -> its estimator and that one's options
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sft": ("bernoulli", {}),
    "dpo": ("bernoulli", {}),
    "vrpo": ("count-stratified", {}),
    "bgpo": ("count-stratified", {"per": "view"}),
    "espo": ("espo", {}),
    "ebpo": ("block-stratified", {}),
    "spg": ("spg", {}),
}
DRAWS = (1, 8, 64)
PROMPT, ANSWER, ROWS = 32, 96, 2


def memory_above(run: Callable[[], Any]) -> float:
    """MiB by which the resident memory rises at most above what this process holds, while ``run`` runs (Linux)."""
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    # Sets the peak back to what is resident.
    Path("/proc/self/clear_refs").write_text("5")
    run()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def draws_report() -> Iterator[dict[str, Any]]:
    """One row per algorithm."""
    catalog = Catalog.load()
    engine = engine_on_small_model(torch.float32, 512)
    update(engine, objective_of(catalog, engine, "sft", 1), "two-pass")
    for name in ALGORITHMS:
        row: dict[str, Any] = {"algorithm": name}
        for draws in DRAWS:
            objective = objective_of(catalog, engine, name, draws)
            row[f"mib_at_{draws}"] = memory_above(lambda of=objective: update(engine, of, "two-pass"))
        row["gradient_difference"] = gradient_difference(catalog, name)
        yield row


def gradient_difference(catalog: Catalog, name: str) -> float:
    """Norm of two-pass less one-pass gradient, over that of the latter, at 8 draws in float64."""
    engine = engine_on_small_model(torch.float64, 512)
    objective = objective_of(catalog, engine, name, 8)
    everything = torch.arange(len(objective.views))
    engine.accumulate_direct(objective.views, objective, [everything])
    direct = taken_gradient(engine)
    leaves = engine.score(objective.views, "live").leaves()
    torch.autograd.backward(objective(leaves).loss)
    engine.accumulate(objective.views, leaves.gradients())
    return float((taken_gradient(engine) - direct).norm() / direct.norm())


def taken_gradient(engine: LocalEngine) -> torch.Tensor:
    parameters = list(engine.adapter.module.parameters())
    flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    for parameter in parameters:
        parameter.grad = None
    return flat


def engine_on_small_model(dtype: torch.dtype, budget: int) -> LocalEngine:
    """A fresh LLaDA of a million parameters behind an engine with this token budget."""
    sizes = {"d_model": 128, "n_layers": 4, "n_heads": 4, "mlp_hidden_size": 384, "max_sequence_length": 128}
    with tempfile.TemporaryDirectory() as folder:
        write_llada_tokenizer(Path(folder))
        section = LladaSection(config=tiny_config(**sizes), init="random", tokenizer=folder)
        adapter = LladaAdapter.load(section, device=torch.device("cpu"), dtype=dtype)
    optim = OptimSection(batch_size=ROWS)
    inputs = EngineInputs(adapter=adapter, optim=optim, peft=None, total_updates=10, keep_reference=True, seed=0)
    return LocalEngine(LocalSection(tokens_per_microbatch=budget), inputs)


def objective_of(catalog: Catalog, engine: LocalEngine, name: str, draws: int) -> Objective:
    """One pair of rows; rewards say that the first is better."""
    kind, options = ALGORITHMS[name]
    algorithm = built(catalog, Slot.ALGORITHM, name, {})
    estimator = built(catalog, Slot.LIKELIHOOD, kind, {**options, "draws": draws})
    column = torch.arange(PROMPT + ANSWER).expand(ROWS, -1)
    rows = PairRows(
        tokens=column % 200,
        prompt=column < PROMPT,
        response=column >= PROMPT,
        completion=column >= PROMPT,
        sample_id=torch.arange(ROWS),
        group=torch.zeros(ROWS, dtype=torch.int64),
        example_id=tuple(map(str, range(ROWS))),
        preferred=torch.tensor([True, False]),
    )
    facts = engine.adapter.facts
    views = estimator.plan(rows, PlanContext(facts=facts, address=Address(0, "corruption"), layout=facts.layout))
    reference = None
    if algorithm.uses_reference:
        reference = estimator.reduce(views, engine.score(views, "reference"), rows)
    return Objective(
        estimator=estimator,
        algorithm=algorithm,
        rows=rows,
        views=views,
        progress=Progress(0, 1),
        advantages=Advantages(value=torch.tensor([1.0, -1.0]), usable=torch.ones(ROWS, dtype=torch.bool)),
        reference=reference,
    )


def built(catalog: Catalog, slot: Slot, kind: str, options: dict[str, Any]) -> Any:
    found = catalog.find(slot, kind)
    return catalog.target_class(found)(catalog.config_class(found)(**options))
