"""The work of ``dare eval``: everything is checked before weights are read, then tasks run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_core.cli.sources import Source, source_of
from dare_core.errors import Problem, UserError
from dare_core.interfaces import EvaluationContext, ItemEvaluator
from dare_core.loops.item_evaluation import Progress, evaluate_items
from dare_core.run.evaluations import EvaluationFolder
from dare_core.run.manifest import model_fingerprint
from dare_core.spec.plan import Choice
from dare_core.types import Address


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """One task for one model.

    Attributes:
        choice: the evaluator's section.
        evaluator: prepared.
        source: the model, decoding as this task wants it.
        folder: where the evaluation lies.
    """

    choice: Choice
    evaluator: ItemEvaluator
    source: Source
    folder: EvaluationFolder


def prepared(
    choices: Sequence[tuple[Choice, Sequence[str]]],
    model: Path,
    adapter: Path | None,
    output: Path | None,
    best: bool,
) -> list[EvaluationJob]:
    """Jobs whose model sections, data and lengths are checked; no weights are read.

    Args:
        choices: evaluators, each with ``path=value`` settings of model and decoding.
        model: see :func:`source_of`, and so for ``adapter`` and ``best``.
        adapter: LoRA folder, or None.
        best: the best checkpoint instead of the last one.
        output: folder for all of them, or None.

    Raises:
        UserError: every problem found.
    """
    from dare_core.cli.eval import item_evaluator

    jobs: list[EvaluationJob] = []
    problems: list[Problem] = []
    for choice, sets in choices:
        try:
            evaluator = item_evaluator(choice)
            source = source_of(model, adapter=adapter, wishes=evaluator.wishes(), sets=sets, best=best)
            if source.peft is not None:
                source.model.target().check_peft(source.model.config, source.peft)
            codec = source.model.target().load_text(source.model.config)
            if codec is None:
                raise UserError(Problem("the model gives no text codec without its weights", path="model.kind"))
            evaluator.prepare((), codec, None)
            evaluator.check_fit(source.facts, source.decoder.settings(source.facts.layout))
            folder = EvaluationFolder(_folder(source, model, output, evaluator.config.name))
            jobs.append(EvaluationJob(choice=choice, evaluator=evaluator, source=source, folder=folder))
        except UserError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        for job in jobs:
            job.evaluator.close()
        raise UserError(problems)
    return jobs


def run_jobs(
    jobs: Sequence[EvaluationJob],
    shard: tuple[int, int],
    seed: int | None,
    report: Callable[[Progress], None],
) -> list[dict[str, Any]]:
    """Load the model once and run every job; per job its task, folder, and result or None while shards are open."""
    from dare_core.loops.placement import load_model

    source = jobs[0].source
    number = source.seed if seed is None else seed
    weights = {role: model_fingerprint(folder) for role, folder in source.weights.items()}
    adapter = load_model(source.model, source.peft, source.seed)
    found = []
    for job in jobs:
        backend = job.source.rollout.target()(job.source.decoder, adapter)
        # The address of a run's first rollout, as in `dare generate`: equal prompts and seeds give equal tokens.
        context = EvaluationContext(
            backend=backend,
            decoding=job.source.decoder.settings(adapter.facts.layout),
            reward=None,
            seed=number,
            step=0 if source.run is None else source.run[1],
            address=Address(number, "rollout", 0),
        )
        try:
            result = evaluate_items(
                job.evaluator,
                context,
                job.folder,
                report,
                kind=job.choice.name,
                weights=weights,
                shard=shard[0],
                of=shard[1],
            )
        finally:
            job.evaluator.close()
            backend.close()
        found.append({"task": job.evaluator.config.name, "folder": str(job.folder.path), "result": result})
    return found


def _folder(source: Source, model: Path, output: Path | None, task: str) -> Path:
    if output is not None:
        return output / task
    if source.run is not None:
        run, step = source.run
        return run / "eval" / f"step_{step}-{task}"
    return Path("evaluations") / model.resolve().name / task
