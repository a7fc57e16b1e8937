"""``eval: {kind: lm-eval}``: a task of lm-evaluation-harness (Gao et al.), document by document.

The harness makes prompts, filters and metrics; this module hands it a model and keeps what it says of each document.
Only tasks whose metrics are means over documents can be measured from kept documents, so others are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from lm_eval.evaluator import evaluate  # type: ignore[import-untyped]
from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]

from dare_core.api import Problem, UserError
from dare_core.interfaces import EvaluationContext, ItemEvaluator, Measure, Reward, TextCodec
from dare_core.types import Address, DecodingSettings, ModelFacts, Prompt
from dare_eval.config import HarnessSection
from dare_eval.harness.model import HarnessModel, StoredAnswers
from dare_eval.likelihood import LikelihoodSettings, check_settings
from dare_eval.measures import mean, share
from dare_eval.records import described, versions
from dare_eval.tasks.files import content_hash, locate

#: the harness's own default: which examples its random samplers show
FEWSHOT_SEED = 1234
#: our tasks: name -> file of their documents
DOCUMENTS = {
    "dare_gsm8k": "gsm8k_test.jsonl",
    "dare_mcq": "mcq_tiny.jsonl",
    "dare_mcq_generate": "mcq_tiny.jsonl",
}


class HarnessEvaluator(ItemEvaluator):
    """One task of the harness."""

    config: HarnessSection

    def __init__(self, config: HarnessSection) -> None:
        super().__init__(config)
        self._task: Any = None
        self._documents = 0
        self._sources: dict[str, str] = {}

    def prepare(self, training: Sequence[Prompt], codec: TextCodec, reward: Reward | None) -> None:
        """Build the task and count its documents. See :meth:`Evaluator.prepare`.

        Raises:
            UserError: the task is unknown, its data are missing, or its metrics are not means.
        """
        self._make_ready()

    def _make_ready(self) -> None:
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        self._task = self._built()
        aggregations = self._task.aggregation()
        others = sorted(name for name, how in aggregations.items() if getattr(how, "__name__", "") != "mean")
        if others:
            message = f"task '{self.config.task}' has metrics that are no means over documents: {', '.join(others)}"
            raise UserError(Problem(message, path="eval.task", hint="run it with the harness itself"))
        shots = self._task.get_config("num_fewshot") if self.config.shots is None else self.config.shots
        self._task.set_config("num_fewshot", shots or 0)
        self._task.set_fewshot_seed(seed=FEWSHOT_SEED)
        count = len(list(self._task.eval_docs))
        self._documents = count if self.config.limit is None else min(count, self.config.limit)

    def _built(self) -> Any:
        if self.config.task in DOCUMENTS:
            name = DOCUMENTS[self.config.task]
            path = locate(name, self.config.data_folder, "see docs/evaluation.md", self.config.task)
            self._sources = {name: content_hash(path)}
            return _own_task(self.config.task, path)
        folders = [self.config.include] if self.config.include else []
        manager = TaskManager(include_path=folders, include_defaults=self.config.bundled)
        if self.config.task not in manager.all_tasks:
            known = [*DOCUMENTS, *(manager.all_tasks if not self.config.bundled else ())]
            hint = f"known: {', '.join(sorted(known))}; eval.bundled: true adds the harness's own"
            raise UserError(Problem(f"unknown task '{self.config.task}'", path="eval.task", hint=hint))
        return _one_task(manager.load(self.config.task)["tasks"], self.config.task)

    def keys(self) -> Sequence[str]:
        """Numbers of the documents."""
        return [str(number) for number in range(self._documents)]

    def protocol(self, context: EvaluationContext) -> Mapping[str, Any]:
        """See :meth:`ItemEvaluator.protocol`."""
        adapter = context.backend.adapter
        task = {key: value for key, value in self._task.dump_config().items() if key != "dataset_kwargs"}
        return {
            "evaluator": "lm-eval",
            "task": self.config.task,
            "task_version": str(self._task.VERSION),
            "task_description": task,
            "data": dict(self._sources),
            "items": self._documents,
            "limit": self.config.limit,
            "prompt_format": "chat template" if self.config.chat_template else "plain text",
            "decoding": asdict(self._settings(context.decoding)),
            "likelihood": {**self.config.likelihood.model_dump(mode="json"), "greedy": self.config.greedy},
            "seed": context.seed,
            "model": described(adapter),
            "model_kind": adapter.facts.kind,
            "versions": versions(("dare-core", "dare-eval", "lm_eval", "torch", "transformers", "tokenizers")),
        }

    def _settings(self, decoding: DecodingSettings) -> DecodingSettings:
        if self.config.temperature == "run":
            return decoding
        fixed = 0.0 if self.config.temperature == "task" else self.config.temperature
        return replace(decoding, temperature=fixed)

    def items(self, context: EvaluationContext, keys: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """See :meth:`ItemEvaluator.items`."""
        model = HarnessModel(
            context.backend,
            self._settings(context.decoding),
            LikelihoodSettings(**self.config.likelihood.model_dump()),
            context.seed,
            context.address or Address(context.seed, f"eval/{self.config.name}"),
            self.config.greedy,
        )
        step = context.backend.config.rows_per_batch
        for start in range(0, len(keys), step):
            chunk = sorted(int(key) for key in keys[start : start + step])
            yield from _items(self._evaluated(model, chunk), model.tokens)

    def check_fit(self, facts: ModelFacts, decoding: DecodingSettings) -> None:
        """See :meth:`ItemEvaluator.check_fit`. The harness alone knows lengths; they are told when they do not fit."""
        if self._task.OUTPUT_TYPE in ("multiple_choice", "loglikelihood"):
            check_settings(facts, LikelihoodSettings(**self.config.likelihood.model_dump()))

    def measure(self, items: Sequence[Mapping[str, Any]]) -> Mapping[str, Measure]:
        """Every metric of every filter, as the harness says them of each document."""
        names = sorted({name for item in items for name in item["metrics"]})
        found = {}
        for name in names:
            values = [float(item["metrics"][name]) for item in items if name in item["metrics"]]
            yes_or_no = all(value in (0.0, 1.0) for value in values)
            found[name] = share([value == 1.0 for value in values]) if yes_or_no else mean(values)
        return found

    def judged_again(self, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The stored responses through the task's present filters and metrics; needs the task and its data.

        Raises:
            UserError: the task or its data are not there.
        """
        if self._task is None:
            self._make_ready()
        stored = {int(item["index"]): item for item in items}
        model = StoredAnswers({document: item["responses"] for document, item in stored.items()})
        found = self._evaluated(model, sorted(stored))
        again = _items(found, {document: item["tokens"] for document, item in stored.items()})
        return [{**item, "prompt": stored[item["index"]]["prompt"]} for item in again]

    def _evaluated(self, model: HarnessModel | StoredAnswers, documents: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        """What the harness says of each document and filter."""
        model.documents = documents
        answered = evaluate(
            lm=model,
            task_dict={"tasks": {self.config.task: self._task}, "groups": {}, "group_map": {}},
            samples={self.config.task: list(documents)},
            apply_chat_template=self.config.chat_template,
            fewshot_as_multiturn=self.config.chat_template,
            bootstrap_iters=0,
            verbosity="ERROR",
        )
        found: Sequence[Mapping[str, Any]] = answered["samples"][self.config.task]
        return found


def _items(samples: Sequence[Mapping[str, Any]], tokens: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    """One item per document, its filters' metrics side by side; ``tokens`` were generated for each."""
    by_document: dict[int, dict[str, Any]] = {}
    filters = {sample["filter"] for sample in samples}
    for sample in samples:
        document = int(sample["doc_id"])
        item = by_document.setdefault(
            document,
            {
                "key": str(document),
                "index": document,
                "reference": str(sample["target"]),
                "prompt": str(sample["arguments"][0][0]),
                "responses": [
                    list(answer) if isinstance(answer, (list, tuple)) else answer for answer in sample["resps"]
                ],
                "filtered": {},
                "metrics": {},
                "tokens": tokens.get(document, 0),
            },
        )
        suffix = f",{sample['filter']}" if len(filters) > 1 else ""
        item["filtered"][sample["filter"]] = sample["filtered_resps"]
        item["metrics"] |= {f"{name}{suffix}": float(sample[name]) for name in sample["metrics"]}
    yield from (by_document[document] for document in sorted(by_document))


def _own_task(name: str, path: Path) -> Any:
    """One of our tasks, reading its documents from ``path``."""
    import yaml
    from lm_eval.api.task import ConfigurableTask  # type: ignore[import-untyped]

    config = yaml.safe_load(files("dare_eval").joinpath("harness", f"{name}.yaml").read_text(encoding="utf-8"))
    config["dataset_kwargs"] = {"data_files": {"test": str(path.resolve())}}
    return ConfigurableTask(config=config)


def _one_task(loaded: Mapping[str, Any], name: str) -> Any:
    if set(loaded) != {name}:
        raise UserError(Problem(f"'{name}' is a group of tasks; name one of {', '.join(loaded)}", path="eval.task"))
    return loaded[name]
