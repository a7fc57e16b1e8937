"""``eval: {kind: task}``: questions of a task, answered by the run's decoder or scored by likelihood, and judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dare_core.api import DareError, Problem, UserError
from dare_core.interfaces import (
    EvaluationContext,
    ItemEvaluator,
    Measure,
    PublishedTable,
    Reward,
    RolloutRequest,
    TextCodec,
)
from dare_core.types import Address, DecodingSettings, Message, ModelFacts, Prompt, Rollout
from dare_eval.choices import choice_items
from dare_eval.config import TaskSection
from dare_eval.likelihood import LikelihoodSettings, check_settings, split_tokens
from dare_eval.measures import measures_of_choices, measures_of_responses
from dare_eval.published.tables import tables
from dare_eval.records import described, versions
from dare_eval.scoring.judges import Judge, Judged, build_judge
from dare_eval.scoring.python_judges import PYTHON_RULES, PythonJudge, build_python_judge
from dare_eval.tasks import library
from dare_eval.tasks.description import TaskDescription
from dare_eval.tasks.rows import Question, read_questions

#: packages whose versions a score can depend on
_PACKAGES = ("dare-core", "dare-eval", "torch", "transformers", "tokenizers", "math-verify")
#: responses before the share of failed verdicts is looked at
_FEW = 20


class TaskEvaluator(ItemEvaluator):
    """One task. See :mod:`dare_eval.tasks.description` for what a task says."""

    config: TaskSection

    def __init__(self, config: TaskSection) -> None:
        super().__init__(config)
        self.task: TaskDescription = library.find(config.task)
        self._questions: dict[str, Question] = {}
        self._sources: Mapping[str, str] = {}
        self._codec: TextCodec | None = None
        self._judge: Judge | None = None
        self._refuse_equal_samples()

    @classmethod
    def published(cls) -> Mapping[str, PublishedTable]:
        """See :meth:`ItemEvaluator.published`."""
        return tables()

    # -- before --------------------------------------------------------------------------------------

    def prepare(self, training: Sequence[Prompt], codec: TextCodec, reward: Reward | None) -> None:
        """Read the questions and let the judge look at them. See :meth:`Evaluator.prepare`."""
        found = read_questions(
            self.task,
            data_folder=self.config.data_folder,
            data_file=self.config.data_file,
            limit=self.config.limit,
            shots=self.config.shots,
        )
        self._questions = {question.prompt.id: question for question in found.questions}
        self._sources, self._codec = found.sources, codec
        self._refuse_overlap(training)
        if self.task.scoring is not None:
            self._judge = self._build_judge(self.task.scoring.rule, self.task.scoring.options)
            self._judge.check([question.prompt for question in found.questions])

    def _build_judge(self, rule: str, options: Mapping[str, Any]) -> Judge:
        if rule not in PYTHON_RULES:
            return build_judge(rule, options)
        if not self.config.allow_code_execution:
            message = f"task '{self.task.task}' runs programs that the model wrote"
            hint = "set allow_code_execution: true (--allow-code-execution) after reading docs/evaluation.md"
            raise UserError(Problem(message, path="eval.allow_code_execution", hint=hint))
        return build_python_judge(rule, options, self.config.code)

    def _refuse_overlap(self, training: Sequence[Prompt]) -> None:
        seen = {_content(prompt) for prompt in training}
        shared = [key for key, question in self._questions.items() if _content(question.prompt) in seen]
        if shared and not self.config.allow_overlap:
            message = (
                f"{len(shared)} of {len(self._questions)} questions are trained on as well: {', '.join(shared[:5])}"
            )
            hint = "evaluate on other rows, or set allow_overlap: true"
            raise UserError(Problem(message, path=f"eval.{self.config.name}", hint=hint))

    def _refuse_equal_samples(self) -> None:
        if self.samples > 1 and self._fixed_temperature() == 0:
            message = f"{self.samples} samples at temperature 0 are {self.samples} equal responses"
            raise UserError(Problem(message, path="eval.temperature", hint="set a temperature, or samples: 1"))

    def check_fit(self, facts: ModelFacts, decoding: DecodingSettings) -> None:
        """See :meth:`ItemEvaluator.check_fit`."""
        if self._codec is None:
            raise ValueError("prepare() comes before check_fit()")
        self._settings(decoding)
        if self.task.choices is not None:
            check_settings(facts, LikelihoodSettings(**self.config.likelihood.model_dump()))
        codec, problems = self._codec, []
        for key, question in self._questions.items():
            if self.task.choices is None:
                length, what = len(codec.encode_prompt(question.prompt)) + decoding.new_tokens, "prompt and new"
            else:
                pairs = [split_tokens(codec, question.prompt, text, None) for text in question.continuations]
                length, what = max(len(before) + len(target) for before, target in pairs), "context and continuation"
            if length > facts.max_positions:
                message = f"row '{key}': {what} tokens make {length}; the model takes {facts.max_positions}"
                problems.append(Problem(message, path=f"eval.{self.config.name}"))
        if problems:
            count = Problem(f"{len(problems)} of {len(self._questions)} questions do not fit the model")
            raise UserError([*problems[:10], count])

    @property
    def samples(self) -> int:
        """Responses per question."""
        return self.config.samples or self.task.samples

    def _fixed_temperature(self) -> float | None:
        """The temperature that does not come from the rollout section."""
        if self.config.temperature == "run":
            return None
        if self.config.temperature == "task":
            return self.task.temperature or 0.0
        return self.config.temperature

    def wishes(self) -> Mapping[str, Any]:
        """See :meth:`ItemEvaluator.wishes`."""
        wanted: dict[str, Any] = {}
        if self.task.new_tokens is not None:
            wanted["rollout.new_tokens"] = self.task.new_tokens
        if self.task.temperature is not None:
            wanted["rollout.temperature"] = self.task.temperature
        return wanted

    def close(self) -> None:
        """End the judge's worker processes."""
        if self._judge is not None:
            self._judge.close()

    # -- protocol ------------------------------------------------------------------------------------

    def keys(self) -> Sequence[str]:
        """Ids of the questions, in file order."""
        return list(self._questions)

    def protocol(self, context: EvaluationContext) -> Mapping[str, Any]:
        """See :meth:`ItemEvaluator.protocol`."""
        adapter = context.backend.adapter
        settings = self._settings(context.decoding)
        first = next(iter(self._questions.values()))
        return {
            "evaluator": "task",
            "task": self.task.task,
            "task_version": self.task.version,
            "task_description": self.task.model_dump(mode="json"),
            "task_hash": library.fingerprint(self.task),
            "data": dict(self._sources),
            "items": len(self._questions),
            "limit": self.config.limit,
            "shots": self._shots(),
            "prompt_format": "plain text" if first.prompt.text is not None else "chat template",
            **self._method(settings),
            "seed": context.seed,
            "model": described(adapter),
            "model_kind": adapter.facts.kind,
            "versions": versions(_PACKAGES),
        }

    def _method(self, settings: DecodingSettings) -> dict[str, Any]:
        if self.task.choices is not None:
            return {"method": "likelihood", "likelihood": self.config.likelihood.model_dump(mode="json")}
        return {"method": "generation", "samples": self.samples, "decoding": asdict(settings), "judge": self._rule()}

    def _rule(self) -> dict[str, Any]:
        if self.task.scoring is None:
            return {}
        rule = {"rule": self.task.scoring.rule, "options": dict(self.task.scoring.options)}
        if isinstance(self._judge, PythonJudge):
            limits = self.config.code.model_dump(mode="json", exclude={"workers"})
            rule |= {"code": limits, "fence": self._judge.isolation}
        return rule

    def _shots(self) -> int:
        count = self.task.shots.count if self.task.shots is not None else 0
        return count if self.config.shots is None else self.config.shots

    def _settings(self, decoding: DecodingSettings) -> DecodingSettings:
        fixed = self._fixed_temperature()
        settings = decoding if fixed is None else replace(decoding, temperature=fixed)
        if self.samples > 1 and settings.temperature == 0 and self.task.choices is None:
            message = f"{self.samples} samples at temperature 0 are {self.samples} equal responses"
            raise UserError(Problem(message, path="rollout.temperature", hint="set a temperature, or samples: 1"))
        return settings

    # -- items ---------------------------------------------------------------------------------------

    def items(self, context: EvaluationContext, keys: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """See :meth:`ItemEvaluator.items`."""
        questions = [self._questions[key] for key in keys]
        rows = context.backend.config.rows_per_batch
        if self.task.choices is not None:
            settings = LikelihoodSettings(**self.config.likelihood.model_dump())
            address = Address(context.seed, "eval/likelihood")
            yield from choice_items(context.backend.adapter, questions, settings, address, rows)
            return
        failed = seen = 0
        step = max(1, rows // self.samples)
        for start in range(0, len(questions), step):
            for item in self._answered(context, questions[start : start + step]):
                failed += sum(response["status"] == "error" for response in item["responses"])
                seen += len(item["responses"])
                yield item
            if seen >= _FEW and failed > self.config.max_error_share * seen:
                raise DareError(
                    f"the judge of task '{self.task.task}' failed on {failed} of {seen} responses; their details are "
                    "in the items. Once it works, 'dare eval rescore' judges what is stored"
                )

    def _answered(self, context: EvaluationContext, questions: Sequence[Question]) -> Iterator[Mapping[str, Any]]:
        rollout = context.backend.generate(
            RolloutRequest(
                prompts=[question.prompt for question in questions],
                samples=self.samples,
                settings=self._settings(context.decoding),
                address=context.address or Address(context.seed, f"eval/{self.config.name}"),
            )
        )
        texts = [self._cut(text) for text in rollout.text]
        prompts = [question.prompt for question in questions for _ in range(self.samples)]
        judged = self._judge_all(prompts, texts)
        for number, question in enumerate(questions):
            own = range(number * self.samples, (number + 1) * self.samples)
            responses = [
                {"text": texts[row], **_facts(rollout, row, self.samples), **_verdict(judged[row])} for row in own
            ]
            yield _item(question, responses)

    def _judge_all(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Judged]:
        if self._judge is None:
            raise ValueError("prepare() comes before items()")
        return self._judge.judge(prompts, texts)

    def _cut(self, text: str) -> str:
        ends = [at for stop in self.task.stop if (at := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text

    # -- metrics -------------------------------------------------------------------------------------

    def measure(self, items: Sequence[Mapping[str, Any]]) -> Mapping[str, Measure]:
        """See :meth:`ItemEvaluator.measure`."""
        if self.task.choices is not None:
            return measures_of_choices(items, self.task.choices.headline)
        return measures_of_responses(items, self.task.headline)

    def judged_again(self, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """See :meth:`ItemEvaluator.judged_again`."""
        if self.task.scoring is None:
            return [dict(item) for item in items]
        if self._judge is None:
            self._judge = self._build_judge(self.task.scoring.rule, self.task.scoring.options)
        prompts = [_stored_prompt(item) for item in items for _ in item["responses"]]
        texts = [response["text"] for item in items for response in item["responses"]]
        judged = iter(self._judge_all(prompts, texts))
        return [
            {**item, "responses": [{**response, **_verdict(next(judged))} for response in item["responses"]]}
            for item in items
        ]


def _item(question: Question, responses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    prompt = question.prompt
    return {
        "key": prompt.id,
        "index": prompt.index,
        "prompt": prompt.text if prompt.text is not None else [[m.role, m.content] for m in prompt.messages],
        "reference": prompt.reference,
        "meta": dict(prompt.meta),
        "group": question.group,
        "responses": list(responses),
        "tokens": sum(response["tokens"] for response in responses),
    }


def _facts(rollout: Rollout, row: int, samples: int) -> dict[str, Any]:
    return {
        "sample": row % samples,
        "finish": rollout.finish[row],
        "tokens": int(rollout.completion[row].sum()),
        "forwards": int(rollout.forwards[row]),
    }


def _verdict(judged: Judged) -> dict[str, Any]:
    return {
        "answer": judged.answer,
        "score": judged.score,
        "status": judged.status.value,
        "detail": judged.detail,
        "parts": dict(judged.parts),
    }


def _stored_prompt(item: Mapping[str, Any]) -> Prompt:
    stored, fields = item["prompt"], {"reference": item["reference"], "meta": item["meta"]}
    if isinstance(stored, str):
        return Prompt(item["key"], item["index"], text=stored, **fields)
    return Prompt(item["key"], item["index"], messages=tuple(Message(role, text) for role, text in stored), **fields)


def _content(prompt: Prompt) -> tuple[object, ...]:
    return (prompt.text, *((message.role, message.content) for message in prompt.messages))
