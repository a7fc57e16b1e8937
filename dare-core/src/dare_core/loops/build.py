"""From a resolved plan to a job: build every part, and check all that can be checked before weights are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.data.batches import BatchOrder
from dare_core.data.examples import ExampleSet
from dare_core.data.fitting import refuse_misfits
from dare_core.data.length_groups import LengthGroups
from dare_core.data.tokens import example_length
from dare_core.diffusion.denoise import decoding_layout
from dare_core.errors import Problem, UserError
from dare_core.interfaces import (
    Algorithm,
    Engine,
    EngineInputs,
    Evaluator,
    LikelihoodEstimator,
    ModelAdapter,
    Reward,
    RolloutBackend,
    TextCodec,
)
from dare_core.loops import offline, online
from dare_core.loops.counting import CountingBackend
from dare_core.loops.evaluation import Evaluations
from dare_core.loops.inner import Learner
from dare_core.loops.job import OfflineJob, OnlineJob
from dare_core.loops.outcome import Outcome
from dare_core.loops.placement import load_model, load_value_model
from dare_core.loops.progress import Report
from dare_core.loops.references import ReferenceEstimates, check_reference_stays, weights_checksum
from dare_core.loops.session import Session
from dare_core.run.checkpoint import Checkpoint
from dare_core.run.folder import RunFolder
from dare_core.run.ledger import Ledger
from dare_core.run.manifest import model_fingerprint
from dare_core.spec.plan import RunPlan
from dare_core.spec.sections import DataSection, EngineSection, GroupAlgorithmSection, ModelSection, RolloutSection
from dare_core.types import AttentionLayout, DecodingSettings, ModelFacts


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is built without reading weights.

    Attributes:
        plan: the resolved run.
        algorithm, estimator, evaluators: as chosen.
        reward: or None where nothing is judged.
        codec: the model's text codec.
        facts: of the model.
        examples: what the data section gave.
        order: which of them each step takes.
        settings: decoding protocol, or None where nothing is generated.
    """

    plan: RunPlan
    algorithm: Algorithm
    estimator: LikelihoodEstimator
    evaluators: Sequence[Evaluator]
    reward: Reward | None
    codec: TextCodec
    facts: ModelFacts
    examples: ExampleSet
    order: BatchOrder
    settings: DecodingSettings | None

    @property
    def samples(self) -> int:
        """Responses per prompt."""
        return samples_per_prompt(self.plan)


def samples_per_prompt(plan: RunPlan) -> int:
    """G: the algorithm's group size, or 1 where it forms no groups."""
    config = plan[Slot.ALGORITHM].config
    return config.group_size if isinstance(config, GroupAlgorithmSection) else 1


def prepare(plan: RunPlan) -> Parts:
    """Build and check everything but the model.

    Raises:
        UserError: every problem found in data, reward and evaluations.
    """
    algorithm = plan[Slot.ALGORITHM].target()(plan[Slot.ALGORITHM].config)
    estimator = plan[Slot.LIKELIHOOD].target()(plan[Slot.LIKELIHOOD].config)
    reward = plan[Slot.REWARD].target()(plan[Slot.REWARD].config) if Slot.REWARD in plan else None
    evaluators = [choice.target()(choice.config) for choice in plan.evals]
    codec, facts = _codec_and_facts(plan)
    source = plan[Slot.DATA].target()(plan[Slot.DATA].config)
    examples = ExampleSet.read(source.config, source, codec)
    settings = _rollout_section(plan).settings(facts.layout) if Slot.ROLLOUT in plan else None
    checks: list[Callable[[], object]] = [
        partial(_order, plan, len(examples)),
        partial(_check_rows, plan, examples, codec, facts),
        partial(check_reference_stays, plan[Slot.ENGINE].config, algorithm.reference_cache),
    ]
    if reward is not None and plan.online:
        checks.append(partial(reward.check, examples.prompts))
    checks += [partial(evaluator.prepare, examples.prompts, codec, reward) for evaluator in evaluators]
    new_tokens = _rollout_section(plan).new_tokens if Slot.ROLLOUT in plan else None
    checks += [partial(evaluator.check_rows, codec, facts, new_tokens) for evaluator in evaluators]
    _all_problems(checks)
    return Parts(
        plan=plan,
        algorithm=algorithm,
        estimator=estimator,
        evaluators=evaluators,
        reward=reward,
        codec=codec,
        facts=facts,
        examples=examples,
        order=_order(plan, len(examples), partial(_row_lengths, examples, codec)),
        settings=settings,
    )


def build(
    parts: Parts,
    folder: RunFolder,
    catalog: Catalog,
    report: Report,
    *,
    checkpoint: Checkpoint | None = None,
    until: int | None = None,
) -> OnlineJob | OfflineJob:
    """Load the model and put the job together.

    Args:
        parts: from :func:`prepare`.
        folder: the run's, held for writing.
        catalog: tells observers.
        report: shows progress.
        checkpoint: continue from here.
        until: end after this many training steps.

    Raises:
        UserError: weights or adapters do not fit, or a checkpoint is damaged.
    """
    plan = parts.plan
    folder.add_fingerprints(_fingerprints(parts))
    for reason, ids in parts.examples.dropped.items():
        report.say(f"left out {len(ids)} rows: {reason}")
    adapter = load_model(plan[Slot.MODEL], plan.peft, plan.run.seed)
    learner = _learner(parts, adapter)
    valued = {} if learner.value_engine is None else {"value_model": learner.value_engine.adapter.describe()}
    folder.record_model({**adapter.describe(), **valued})
    backend = plan[Slot.ROLLOUT].target()(plan[Slot.ROLLOUT].config, adapter) if Slot.ROLLOUT in plan else None
    session = _session(parts, learner, backend, folder, catalog, report, until)
    job = None if plan.online else _offline(parts, learner, session)
    if job is not None:
        offline.prepare_references(job, plan.run.steps)
    if checkpoint is not None:
        session.restore(checkpoint.path)
        if backend is not None:
            backend.sync(learner.engine.weights(), version=session.start)
    if job is not None:
        return job
    if backend is None or parts.reward is None or parts.settings is None:
        raise ValueError("an online run needs rollout and reward sections")
    return OnlineJob(
        learner=learner,
        session=session,
        prompts=parts.examples.prompts,
        order=parts.order,
        samples=parts.samples,
        settings=parts.settings,
        snapshots="snapshots" in plan[Slot.ALGORITHM].component.needs | plan[Slot.LIKELIHOOD].component.needs,
        backend=CountingBackend(backend, session.ledger),
        reward=parts.reward,
        max_error_share=plan.run.max_error_share,
        prefix_rewards="prefix" in plan[Slot.ALGORITHM].component.needs,
    )


def execute(job: OnlineJob | OfflineJob) -> Outcome:
    """Run the loop that the job belongs to."""
    return online.run(job) if isinstance(job, OnlineJob) else offline.run(job)


def _learner(parts: Parts, adapter: ModelAdapter) -> Learner:
    plan, algorithm = parts.plan, parts.algorithm
    choice = plan[Slot.ENGINE]
    inputs = EngineInputs(
        adapter=adapter,
        optim=plan.optim,
        peft=plan.peft,
        total_updates=plan.run.steps * algorithm.inner_updates,
        keep_reference=(algorithm.uses_reference and algorithm.reference_cache is None)
        or algorithm.reference_share > 0,
        seed=plan.run.seed,
    )
    mode = choice.config.update if isinstance(choice.config, EngineSection) else "auto"
    facts = adapter.facts
    layout = decoding_layout(facts, parts.settings) if plan.online and parts.settings else facts.layout
    references = _references(parts, adapter, layout)
    return Learner(
        algorithm=algorithm,
        estimator=parts.estimator,
        engine=choice.target()(choice.config, inputs),
        facts=facts,
        layout=layout,
        seed=plan.run.seed,
        total_steps=plan.run.steps,
        mode=mode,
        temperature=parts.settings.temperature if plan.online and parts.settings else 1.0,
        references=references,
        value_engine=_value_engine(parts, inputs),
    )


def _value_engine(parts: Parts, policy: EngineInputs) -> Engine | None:
    """An engine of the same kind for the value model, or None where the algorithm has none."""
    plan, section = parts.plan, parts.algorithm.value_model
    if section is None:
        return None
    choice = plan[Slot.ENGINE]
    adapter = load_value_model(plan[Slot.MODEL], plan.peft, plan.run.seed, section.path)
    optim = policy.optim if section.lr is None else policy.optim.model_copy(update={"lr": section.lr})
    inputs = replace(policy, adapter=adapter, optim=optim, keep_reference=False)
    engine: Engine = choice.target()(choice.config, inputs)
    return engine


def _references(parts: Parts, adapter: ModelAdapter, layout: AttentionLayout) -> ReferenceEstimates | None:
    """The algorithm's kept reference estimates, under a key of all that they follow from."""
    path = parts.algorithm.reference_cache
    if path is None:
        return None
    plan, made = parts.plan, adapter.describe()
    likelihood, engine = plan[Slot.LIKELIHOOD], plan[Slot.ENGINE].config
    key = {
        "model": plan[Slot.MODEL].name,
        "weights": weights_checksum(adapter.module),
        "data": parts.examples.fingerprint,
        "likelihood": likelihood.name,
        **{f"likelihood.{name}": str(value) for name, value in likelihood.config.model_dump(mode="json").items()},
        "seed": str(plan.run.seed),
        "layout": str(layout),
        "attention": str(made.get("attention")),
        "device": str(made.get("device")).partition(":")[0],
        "autocast": str(getattr(engine, "autocast", None)),
    }
    return ReferenceEstimates(Path(path), key)


def _session(
    parts: Parts,
    learner: Learner,
    backend: RolloutBackend | None,
    folder: RunFolder,
    catalog: Catalog,
    report: Report,
    until: int | None,
) -> Session:
    plan = parts.plan
    closers = [part.close for part in (backend, parts.reward, *parts.evaluators) if part is not None]
    return Session(
        section=plan.run,
        folder=folder,
        engine=learner.engine,
        evaluations=Evaluations(
            evaluators=parts.evaluators,
            adapter=learner.engine.adapter,
            backend=backend,
            decoding=parts.settings,
            reward=parts.reward,
            seed=plan.run.seed,
            total_steps=plan.run.steps,
        ),
        notify=catalog.notify,
        report=report,
        trackers=[choice.target()(choice.config, folder.path) for choice in plan.trackers],
        ledger=Ledger(),
        until=until,
        closers=closers,
        value_engine=learner.value_engine,
    )


def _offline(parts: Parts, learner: Learner, session: Session) -> OfflineJob:
    section = parts.plan[Slot.DATA].config
    wants_pairs = "pairs" in parts.plan[Slot.ALGORITHM].component.needs
    return OfflineJob(
        learner=learner,
        session=session,
        examples=parts.examples.pairs if wants_pairs else parts.examples.demonstrations,
        order=parts.order,
        codec=parts.codec,
        max_tokens=section.max_tokens if isinstance(section, DataSection) else None,
        one_turn=isinstance(section, DataSection) and section.trained_turns == "one",
    )


def _codec_and_facts(plan: RunPlan) -> tuple[TextCodec, ModelFacts]:
    choice = plan[Slot.MODEL]
    section = choice.config
    codec = choice.target().load_text(section)
    if codec is None or plan.facts is None:
        raise UserError(
            Problem(
                f"model '{choice.name}' gives no text codec without its weights, so data cannot be checked first",
                path="model.kind",
                hint="its adapter must implement load_text",
            )
        )
    return codec, plan.facts


def _rollout_section(plan: RunPlan) -> RolloutSection:
    section = plan[Slot.ROLLOUT].config
    if not isinstance(section, RolloutSection):
        raise TypeError(f"{plan[Slot.ROLLOUT].name} is configured by {type(section).__name__}, not a rollout section")
    return section


def _row_lengths(examples: ExampleSet, codec: TextCodec) -> list[int]:
    """Tokens per example."""
    whole = examples.demonstrations or examples.pairs or examples.prompts
    return [example_length(example, codec) for example in whole]


def _order(plan: RunPlan, count: int, lengths: Callable[[], Sequence[int]] | None = None) -> BatchOrder:
    """Prompts, demonstrations or pairs per step, from the rows per optimizer step; by ``lengths`` if data says so."""
    needs = plan[Slot.ALGORITHM].component.needs
    rows = samples_per_prompt(plan) if plan.online else 2 if "pairs" in needs else 1
    if plan.optim.batch_size % rows:
        message = f"batch_size {plan.optim.batch_size} is not divisible by {rows} rows per example"
        raise UserError(Problem(message, path="optim.batch_size"))
    section = plan[Slot.DATA].config
    shuffle = section.shuffle if isinstance(section, DataSection) else True
    if lengths is not None and isinstance(section, DataSection) and section.group_by_length is not None:
        return LengthGroups(lengths(), section.group_by_length, plan.optim.batch_size // rows, plan.run.seed)
    return BatchOrder(count, plan.optim.batch_size // rows, plan.run.seed, shuffle)


def _check_rows(plan: RunPlan, examples: ExampleSet, codec: TextCodec, facts: ModelFacts) -> None:
    """Every row fits the model; not asked again of rows that reading measured, with a tokenizer that cannot exceed."""
    new = _rollout_section(plan).new_tokens if plan.online else None
    size = codec.vocab_size
    if size is None or size > facts.vocab_size or _longest_allowed(plan, new or 0) > facts.max_positions:
        refuse_misfits(examples, codec, facts, new)


def _longest_allowed(plan: RunPlan, new: int) -> float:
    """Tokens of the longest row that reading the data let through, new ones included."""
    section = plan[Slot.DATA].config
    if not isinstance(section, DataSection):
        return float("inf")
    limit = section.max_prompt_tokens if plan.online else section.max_tokens
    return float("inf") if limit is None else limit + new


def _all_problems(checks: Sequence[Callable[[], object]]) -> None:
    problems: list[Problem] = []
    for check in checks:
        try:
            check()
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)


def _fingerprints(parts: Parts) -> dict[str, str]:
    section = parts.plan[Slot.MODEL].config
    found = {"data": parts.examples.fingerprint}
    if isinstance(section, ModelSection) and section.path is not None:
        found["model"] = model_fingerprint(Path(section.path))
    return found
