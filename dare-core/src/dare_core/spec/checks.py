"""Checks across sections, before anything heavy is imported. Each yields problems and needs only what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from dare_core.capabilities import VOCABULARY
from dare_core.catalog import Catalog
from dare_core.components import Slot
from dare_core.errors import DareError, Problem, UserError
from dare_core.spec.draft import Draft, Used
from dare_core.spec.files import files_missing
from dare_core.spec.sections import DataSection, EngineSection, GroupAlgorithmSection, ModelSection, RolloutSection
from dare_core.spec.selection import published_config
from dare_core.types.model import ModelFacts

#: first words of the metrics that training itself writes
TRAINING_METRICS = (
    "advantage",
    "algorithm",
    "data",
    "loss",
    "optim",
    "reward",
    "rollout",
    "spent",
    "value",
    "verdicts",
)
#: capability word of data -> the options that give it
_DATA_REMEDIES = {
    "demonstrations": "give 'data.completion', the template of the answer to learn, or 'data.trained_turns'",
    "pairs": "give 'data.chosen' and 'data.rejected', the templates of the two answers",
}


def check_draft(draft: Draft, catalog: Catalog) -> tuple[ModelFacts | None, list[Problem]]:
    """Facts of the model, if they can be read, and every contradiction between sections."""
    facts, problems = _facts(draft)
    checks = (
        _capabilities(draft, catalog),
        _requirements(draft),
        _groups(draft),
        _pairs(draft),
        _lengths(draft, facts),
        _dropout(draft),
        _quantised(draft),
        _names(draft),
        _watched_metrics(draft),
        files_missing(draft),
    )
    return facts, [*problems, *(problem for check in checks for problem in check)]


def _capabilities(draft: Draft, catalog: Catalog) -> Iterator[Problem]:
    """Every word a component needs is provided by the component of the slot that owns the word."""
    for needing in draft.used:
        if "." in needing.path and needing.slot not in (Slot.EVALUATOR, Slot.TRACKER):
            continue
        for word in sorted(needing.needs):
            slot, meaning = VOCABULARY[word]
            provider = draft.section(slot)
            if provider is None:
                if draft.root.entries.get(str(slot)) is None and slot in (Slot.ROLLOUT, Slot.REWARD):
                    message = f"{needing.title} needs '{word}' ({meaning}), and there is no section '{slot}'"
                    yield Problem(message, needing.path, needing.where, f"add '{slot}'")
            elif word not in provider.provides and not (slot is Slot.DATA and provider.config is None):
                yield _mismatch(needing, provider, word, catalog, draft)
            elif isinstance(provider.config, RolloutSection) and word in provider.config.withheld():
                option, reason = provider.config.withheld()[word]
                message = f"{needing.title} needs '{word}' ({meaning}), but {reason}"
                yield Problem(message, option, draft.place(option))


def _mismatch(needing: Used, provider: Used, word: str, catalog: Catalog, draft: Draft) -> Problem:
    slot, meaning = VOCABULARY[word]
    message = f"{needing.title} needs '{word}' ({meaning}), which {provider.title} does not provide"
    if slot is Slot.DATA:
        message = message.replace("does not provide", "as configured does not give")
        return Problem(message, str(slot), provider.where, _DATA_REMEDIES.get(word))
    others = [item.component.kind for item in catalog.components(slot) if word in item.component.provides]
    what = f"{slot.noun}s installed that do" if others else f"no installed {slot.noun} does"
    hint = f"{what}: {', '.join(others)}" if others else what
    return Problem(message, f"{slot}.kind", draft.place(f"{slot}.kind"), hint)


def _requirements(draft: Draft) -> Iterator[Problem]:
    """Python packages that chosen components import are installed."""
    for used in draft.used:
        for missing in used.registered.missing:
            message = f"{used.title} needs the Python package '{missing.name}', which is not installed"
            yield Problem(message, used.path, used.where, missing.install)


def _groups(draft: Draft) -> Iterator[Problem]:
    """Batches hold whole groups, and samples of a group can differ."""
    algorithm = draft.choices.get(Slot.ALGORITHM)
    if algorithm is None or not isinstance(algorithm.config, GroupAlgorithmSection):
        return
    size = algorithm.config.group_size
    if draft.optim is not None and draft.optim.batch_size % size:
        batch = draft.optim.batch_size
        below, above = batch - batch % size, batch - batch % size + size
        yield Problem(
            f"batch_size {batch} is not divisible by algorithm.group_size {size}: a batch holds whole groups",
            "optim.batch_size",
            draft.place("optim.batch_size"),
            f"take {f'{below} or ' if below else ''}{above}",
        )
    rollout = draft.choices.get(Slot.ROLLOUT)
    if rollout is not None and isinstance(rollout.config, RolloutSection) and rollout.config.temperature == 0:
        yield Problem(
            f"temperature 0 makes all {size} responses to a prompt equal, so no group has an advantage",
            "rollout.temperature",
            draft.place("rollout.temperature"),
            "take a temperature above 0",
        )


def _pairs(draft: Draft) -> Iterator[Problem]:
    """A batch of preference pairs holds both sides of each."""
    algorithm = draft.section(Slot.ALGORITHM)
    if algorithm is None or draft.optim is None or "pairs" not in algorithm.registered.component.needs:
        return
    if draft.optim.batch_size % 2:
        message = f"batch_size {draft.optim.batch_size} is odd: each pair is two rows"
        yield Problem(message, "optim.batch_size", draft.place("optim.batch_size"), "take an even number")


def _facts(draft: Draft) -> tuple[ModelFacts | None, list[Problem]]:
    """What the model's section says about its config.json."""
    choice = draft.choices.get(Slot.MODEL)
    if choice is None or not isinstance(choice.config, ModelSection):
        return None, []
    published, reason = choice.config.config, None
    source = "model.config"
    if published is None:
        source = "model.path"
        published, reason = published_config(draft.root.entries["model"])
    if published is None or reason is not None:
        return None, []
    try:
        return choice.config.facts(published), []
    except UserError as error:
        return None, list(error.problems)
    except (DareError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"lacks the key {error}" if isinstance(error, KeyError) else str(error)
        message = f"not a config of '{choice.name}': {reason}"
        return None, [Problem(message, source, draft.place(source))]


def _lengths(draft: Draft, facts: ModelFacts | None) -> Iterator[Problem]:
    """Rows fit the model."""
    if facts is None:
        return
    data = draft.choices.get(Slot.DATA)
    rollout = draft.choices.get(Slot.ROLLOUT)
    config = data.config if data is not None else None
    prompt = config.max_prompt_tokens if isinstance(config, DataSection) else None
    if rollout is not None and isinstance(rollout.config, RolloutSection):
        try:
            rollout.config.settings(facts.layout)
        except ValueError as error:
            yield Problem(str(error), "rollout", draft.place("rollout"))
        total = rollout.config.new_tokens + (prompt or 0)
        if total > facts.max_positions:
            parts = f"data.max_prompt_tokens {prompt} + " if prompt else ""
            yield Problem(
                f"{parts}new_tokens {rollout.config.new_tokens} exceeds the model's {facts.max_positions} positions",
                "rollout.new_tokens",
                draft.place("rollout.new_tokens"),
            )
    if isinstance(config, DataSection):
        for name in ("max_tokens", "max_prompt_tokens"):
            value = getattr(config, name)
            if value is not None and value > facts.max_positions:
                message = f"{name} {value} exceeds the model's {facts.max_positions} positions"
                yield Problem(message, f"data.{name}", draft.place(f"data.{name}"))


def _dropout(draft: Draft) -> Iterator[Problem]:
    """A two-pass update computes every view twice and needs the same numbers both times."""
    engine = draft.choices.get(Slot.ENGINE)
    if draft.peft is None or not draft.peft.dropout or engine is None:
        return
    if isinstance(engine.config, EngineSection) and engine.config.update == "two-pass":
        yield Problem(
            f"dropout {draft.peft.dropout} and 'engine.update: two-pass' exclude each other: the second pass would "
            "drop other values than the first",
            "peft.dropout",
            draft.place("peft.dropout"),
            "set dropout to 0, or update to 'direct'",
        )


def _quantised(draft: Draft) -> Iterator[Problem]:
    """A base of few bits is frozen, and made by a package that may be missing."""
    model = draft.choices.get(Slot.MODEL)
    if model is None or not isinstance(model.config, ModelSection) or model.config.quantise is None:
        return
    place = draft.place("model.quantise")
    if draft.choices.get(Slot.ALGORITHM) is not None and draft.peft is None:
        message = "a quantised base cannot be trained itself, and there is no section 'peft'"
        yield Problem(message, "model.quantise", place, "add 'peft', or set it to null")
    if find_spec("bitsandbytes") is None:
        message = "needs the Python package 'bitsandbytes', which is not installed"
        yield Problem(message, "model.quantise", place, "pip install 'dare-core[quantised]'")


def _names(draft: Draft) -> Iterator[Problem]:
    """Evaluations write to places of their own."""
    seen: dict[str, str] = {}
    for path, config in draft.configs(Slot.EVALUATOR):
        name = getattr(config, "name", None)
        if name is None:
            continue
        if name in seen:
            message = f"name '{name}' is taken by {seen[name]}: metrics and folders carry it"
            yield Problem(message, f"{path}.name", draft.place(path), "give each evaluation a name of its own")
        seen.setdefault(name, path)


def _watched_metrics(draft: Draft) -> Iterator[Problem]:
    """Metrics that decide what is kept and when to stop are metrics that some part of the run writes."""
    if draft.run is None:
        return
    evaluations = [name for _, config in draft.configs(Slot.EVALUATOR) if (name := getattr(config, "name", None))]
    watched = [("run.keep_best", draft.run.keep_best)] if draft.run.keep_best else []
    watched += [("run.stop_below", metric) for metric in draft.run.stop_below]
    for path, metric in watched:
        if metric.split("/")[0] not in (*TRAINING_METRICS, *evaluations):
            message = f"nothing in this run writes metric '{metric}'; evaluations: {', '.join(evaluations) or 'none'}"
            yield Problem(message, path, draft.place(path), "add an 'eval' of that name, or name another metric")
