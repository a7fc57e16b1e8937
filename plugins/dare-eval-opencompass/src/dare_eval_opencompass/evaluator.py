"""``eval: {kind: opencompass}``: OpenCompass (Contributors 2023) asks and scores, our decoder answers.

OpenCompass is called twice, each time in its own environment with the model class ``dare_bridge.BridgeModel``. Before
the model is loaded it asks all its questions, which are written down. Then they are answered like those of any task,
item by item, so that they can be resumed and shared out. At last it asks the same questions again, gets the stored
answers, and scores them. Its result files are read; one that is missing is a failure.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dare_core.api import DareError, Problem, UserError
from dare_core.interfaces import EvaluationContext, ItemEvaluator, Measure, Reward, RolloutRequest, TextCodec
from dare_core.types import Address, DecodingSettings, Message, ModelFacts, Prompt
from dare_eval_opencompass import benchmarks, environment, layout
from dare_eval_opencompass.config import OpenCompassSection
from dare_eval_opencompass.results import measures

_PACKAGES = ("dare-core", "dare-eval-opencompass", "torch", "transformers", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class _Question:
    """One question as OpenCompass asks it: chat turns as (role, text), or a text; ``stop`` cuts responses."""

    key: str
    index: int
    prompt: str | list[list[str]]
    stop: tuple[str, ...]


class OpenCompassEvaluator(ItemEvaluator):
    """One benchmark."""

    config: OpenCompassSection

    def __init__(self, config: OpenCompassSection) -> None:
        super().__init__(config)
        self.benchmark = benchmarks.find(config.task)
        self._python = environment.interpreter(config.environment)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._data: Path | None = None
        self._sources: dict[str, str] = {}
        self._questions: dict[str, _Question] = {}
        self._asked: dict[str, Any] = {}
        self._codec: TextCodec | None = None
        self._refuse()

    def _refuse(self) -> None:
        if self.benchmark.runs_code and not self.config.allow_code_execution:
            message = f"OpenCompass runs programs that the model wrote for '{self.config.task}', and fences nothing in"
            hint = "set allow_code_execution: true (--allow-code-execution) inside a container or virtual machine"
            raise UserError(Problem(message, path="eval.allow_code_execution", hint=hint))
        if self.benchmark.whole and self.config.limit is not None:
            raise UserError(Problem(f"OpenCompass scores all rows of '{self.config.task}' or none", path="eval.limit"))
        if self.repeats > 1 and self.config.limit is not None:
            message = "OpenCompass cuts rows behind the repetitions, so a limit would take other questions for samples"
            raise UserError(Problem(message, path="eval.limit", hint="leave out --limit, or set --samples 1"))
        if self.repeats > 1 and self._fixed_temperature() == 0:
            message = f"{self.repeats} responses at temperature 0 are {self.repeats} equal responses"
            raise UserError(Problem(message, path="eval.temperature", hint="set a temperature, or samples: 1"))

    @property
    def repeats(self) -> int:
        """Responses per question."""
        return self.config.samples or self.benchmark.repeats

    # -- before --------------------------------------------------------------------------------------

    def wishes(self) -> Mapping[str, Any]:
        """See :meth:`ItemEvaluator.wishes`."""
        found: dict[str, Any] = {}
        if self.benchmark.new_tokens is not None:
            found["rollout.new_tokens"] = self.benchmark.new_tokens
        if self.benchmark.temperature is not None:
            found["rollout.temperature"] = self.benchmark.temperature
        return found

    def prepare(self, training: Sequence[Prompt], codec: TextCodec, reward: Reward | None) -> None:
        """Look for the data and let OpenCompass ask its questions. See :meth:`Evaluator.prepare`.

        Raises:
            UserError: data are missing, or the benchmark is none of generated text.
            DareError: OpenCompass failed.
        """
        self._codec = codec
        self._asked = self._call("ask")
        path = self._work() / "questions.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        for index, row in enumerate(rows):
            key = f"{row['dataset']}/{row['row']}"
            self._questions[key] = _Question(
                key=key, index=index, prompt=row["prompt"], stop=tuple(stop for stop in row["stop"] if stop)
            )
        if not self._questions:
            raise DareError(f"OpenCompass asked no question of '{self.config.task}'")
        seen = {(prompt.text, *((turn.role, turn.content) for turn in prompt.messages)) for prompt in training}
        shared = [key for key, one in self._questions.items() if _content(one.prompt) in seen]
        if shared:
            raise UserError(Problem(f"{len(shared)} questions are trained on as well: {', '.join(shared[:5])}"))

    def check_fit(self, facts: ModelFacts, decoding: DecodingSettings) -> None:
        """See :meth:`ItemEvaluator.check_fit`."""
        self._settings(decoding)
        long = []
        for question in self._questions.values():
            length = len(self._encoder().encode_prompt(self._prompt(question))) + decoding.new_tokens
            if length > facts.max_positions:
                message = f"question '{question.key}': prompt and new tokens make {length}; the model takes"
                long.append(Problem(f"{message} {facts.max_positions}", path=f"eval.{self.config.name}"))
        if long:
            raise UserError([*long[:10], Problem(f"{len(long)} of {len(self._questions)} questions do not fit")])

    def close(self) -> None:
        """Remove what was exchanged."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _call(self, phase: str) -> dict[str, Any]:
        work = self._work()
        if self._data is None:
            self._data, self._sources = layout.data_root(
                self.config.task, self.benchmark, self.config.data_folder, work
            )
        request = {
            "phase": phase,
            "chat": self.config.chat_template,
            "answer_turn": self.config.answer_turn,
            "benchmarks": [self._request(self._data)],
        }
        return environment.call(self._python, work, request, self._data, self.config.time_limit)

    def _request(self, data: Path) -> dict[str, Any]:
        found = {
            "name": self.config.task,
            "config": self.benchmark.config,
            "limit": self.config.limit,
            "repeats": self.repeats if self.repeats > 1 else None,
            "boxed": self.benchmark.boxed,
        }
        if self.benchmark.rows is not None:
            found["multiple_choice"] = {
                "path": str(data / "choices.jsonl"),
                "abbr": self.config.task,
                "options": (letters := layout.letters_of(data)),
                "input_columns": ["question", *letters],
                "output_column": "answer",
            }
        return found

    def _work(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="dare-opencompass-")
        return Path(self._folder.name)

    def _encoder(self) -> TextCodec:
        if self._codec is None:
            raise ValueError("prepare() comes first")
        return self._codec

    # -- items ---------------------------------------------------------------------------------------

    def keys(self) -> Sequence[str]:
        """Dataset and row of each question."""
        return list(self._questions)

    def protocol(self, context: EvaluationContext) -> Mapping[str, Any]:
        """See :meth:`ItemEvaluator.protocol`."""
        adapter = context.backend.adapter
        model = adapter.describe()
        if "device" in model:
            model["device"] = str(model["device"]).partition(":")[0]
        asked = json.dumps([(key, one.prompt, one.stop) for key, one in self._questions.items()], ensure_ascii=False)
        return {
            "evaluator": "opencompass",
            "task": self.config.task,
            "task_version": benchmarks.version(),
            "task_description": self.benchmark.model_dump(mode="json"),
            "datasets": [
                {name: one[name] for name in ("dataset", "version", "evaluator", "examples")}
                for one in self._asked["datasets"]
            ],
            "data": dict(self._sources),
            "questions": sha256(asked.encode()).hexdigest(),
            "items": len(self._questions),
            "limit": self.config.limit,
            "samples": self.repeats,
            "prompt_format": "chat template" if self.config.chat_template else "plain text",
            "answer_turn": self.config.answer_turn,
            "decoding": asdict(self._settings(context.decoding)),
            "seed": context.seed,
            "model": model,
            "model_kind": adapter.facts.kind,
            "versions": {name: version(name) for name in _PACKAGES} | {"opencompass": self._asked["opencompass"]},
        }

    def _fixed_temperature(self) -> float | None:
        if self.config.temperature == "run":
            return None
        if self.config.temperature == "task":
            return self.benchmark.temperature or 0.0
        return self.config.temperature

    def _settings(self, decoding: DecodingSettings) -> DecodingSettings:
        fixed = self._fixed_temperature()
        settings = decoding if fixed is None else replace(decoding, temperature=fixed)
        if self.repeats > 1 and settings.temperature == 0:
            message = f"{self.repeats} responses at temperature 0 are {self.repeats} equal responses"
            raise UserError(Problem(message, path="rollout.temperature", hint="set a temperature, or samples: 1"))
        return settings

    def items(self, context: EvaluationContext, keys: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """See :meth:`ItemEvaluator.items`."""
        step = context.backend.config.rows_per_batch
        for start in range(0, len(keys), step):
            questions = [self._questions[key] for key in keys[start : start + step]]
            rollout = context.backend.generate(
                RolloutRequest(
                    prompts=[self._prompt(question) for question in questions],
                    samples=1,
                    settings=self._settings(context.decoding),
                    address=context.address or Address(context.seed, f"eval/{self.config.name}"),
                )
            )
            for row, question in enumerate(questions):
                tokens = int(rollout.completion[row].sum())
                yield {
                    "key": question.key,
                    "index": question.index,
                    "prompt": question.prompt,
                    "response": _cut(rollout.text[row], question.stop),
                    "finish": rollout.finish[row],
                    "forwards": int(rollout.forwards[row]),
                    "tokens": tokens,
                }

    def _prompt(self, question: _Question) -> Prompt:
        if isinstance(question.prompt, str):
            return Prompt(question.key, question.index, text=question.prompt)
        turns = tuple(Message(role, text) for role, text in question.prompt)
        if turns[-1].role != "assistant":
            return Prompt(question.key, question.index, messages=turns)
        # The answer has begun: the open header and what stands behind it, encoded together.
        begun = self._encoder().render(turns[:-1]) + turns[-1].content
        return Prompt(question.key, question.index, text=begun)

    # -- scores --------------------------------------------------------------------------------------

    def measure(self, items: Sequence[Mapping[str, Any]]) -> Mapping[str, Measure]:
        """What OpenCompass says of the stored responses.

        Raises:
            DareError: it failed, or a result is missing or of other rows.
        """
        with (self._work() / "answers.jsonl").open("w", encoding="utf-8") as out:
            for item in items:
                dataset, _, row = item["key"].rpartition("/")
                answer = {"dataset": dataset, "row": int(row), "prompt": item["prompt"], "text": item["response"]}
                out.write(json.dumps(answer, ensure_ascii=False) + "\n")
        said = self._call("answer")
        folder = self._work() / "answer" / "results" / "dare"
        return measures([one["dataset"] for one in said["datasets"]], folder, items, self.benchmark.metric)

    def judged_again(self, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The items as they are: OpenCompass judges them all when they are measured."""
        return [dict(item) for item in items]


def _content(prompt: str | list[list[str]]) -> tuple[object, ...]:
    return (prompt,) if isinstance(prompt, str) else (None, *((role, text) for role, text in prompt))


def _cut(text: str, stops: Sequence[str]) -> str:
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text
